"""What limits mean, as plainly as it can be said: everything that happened is kept, and added up for each question."""

from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor

from router.limits import Key


@dataclass
class Admitted:
    at: float
    tokens: int
    cost: int
    requests: int = 1
    booked_at: float | None = None
    booked: tuple[int, int] = (0, 0)
    """Cost and tokens."""


class Reference:
    def __init__(self, key: Key) -> None:
        self.key = key
        self.all: list[Admitted] = []

    def reserve(self, tokens: int, cost: int, now: float) -> Admitted | tuple[str, float]:
        """What is admitted, or the refusal's code and wait."""
        key = self.key
        for budget, code, period in (
            (key.budget_month, "budget_month_exceeded", "%Y-%m"),
            (key.budget_day, "budget_day_exceeded", "%Y-%m-%d"),
        ):
            spent = self.booked(now, period)[0]
            if budget is not None and spent + self.reserved() + cost > budget:
                return code, self._period_left(now, period) if spent + cost > budget else 1.0
        if key.rpm is not None and self.window(now)[0] + 1 > key.rpm:
            return "rate_limit_requests", self._wait(now, 1, 0)
        if key.tpm is not None and self.window(now)[1] + tokens > key.tpm:
            return "rate_limit_tokens", self._wait(now, 0, tokens)
        if key.concurrency is not None and self.in_flight() + 1 > key.concurrency:
            return "concurrency_limit", 1.0
        admitted = Admitted(now, tokens, cost)
        self.all.append(admitted)
        return admitted

    def end(self, admitted: Admitted, tokens: int, cost: int, requests: int, now: float) -> None:
        if admitted.booked_at is None:
            admitted.booked_at, admitted.booked = now, (cost, tokens)
            admitted.tokens, admitted.requests = tokens, requests

    def window(self, now: float) -> tuple[int, int]:
        """Requests and tokens of the seconds that are not wholly older than 60 s."""
        counted = [each for each in self.all if floor(each.at) + 1 > floor(now) - 60]
        return sum(each.requests for each in counted), sum(each.tokens for each in counted)

    def reset(self, now: float) -> float:
        return min(floor(each.at) for each in self.all if floor(each.at) + 1 > floor(now) - 60) + 61 - now

    def in_flight(self) -> int:
        return sum(each.booked_at is None for each in self.all)

    def reserved(self) -> int:
        return sum(each.cost for each in self.all if each.booked_at is None)

    def booked(self, now: float, period: str) -> tuple[int, int, int]:
        """Cost, tokens and requests that were booked in the same period as `now`."""
        booked = [each for each in self.all if each.booked_at is not None and _same(each.booked_at, now, period)]
        return (
            sum(each.booked[0] for each in booked),
            sum(each.booked[1] for each in booked),
            sum(each.requests for each in booked),
        )

    def _wait(self, now: float, requests: int, tokens: int) -> float:
        rpm, tpm = self.key.rpm, self.key.tpm
        for later in range(floor(now) + 1, floor(now) + 62):
            used_requests, used_tokens = self.window(later)
            if (requests == 0 or rpm is None or used_requests + requests <= rpm) and (
                tokens == 0 or tpm is None or used_tokens + tokens <= tpm
            ):
                return 60.0 if tpm is not None and tokens > tpm else later - now
        return 60.0

    def _period_left(self, now: float, period: str) -> float:
        later = floor(now) + 1
        while _same(later, now, period):
            later += 3600 - later % 3600
        return later - now


def _same(one: float, other: float, period: str) -> bool:
    return datetime.fromtimestamp(one, UTC).strftime(period) == datetime.fromtimestamp(other, UTC).strftime(period)
