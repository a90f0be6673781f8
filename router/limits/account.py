"""What one key holds and has used, counted in this process."""

from collections import deque
from math import floor

from router.limits.keys import Key
from router.limits.periods import DAY_S, day_left_s, month_left_s, month_of
from router.limits.results import SOON_S, WINDOW_S, KeyUsage, Refusal, Reservation, refusal


class Second:
    """What was admitted in one second, for as long as it counts."""

    __slots__ = ("at", "counts", "requests", "tokens")

    def __init__(self, at: int) -> None:
        self.at = at
        self.requests = 0
        self.tokens = 0
        self.counts = True


class Held(Reservation):
    """A reservation that knows where it was taken from."""

    __slots__ = ("account", "second")

    account: "Account | None"
    """None once it has ended."""
    second: Second | None


class Period:
    """What was settled in a day or a month."""

    __slots__ = ("cost", "number", "requests", "tokens")

    def __init__(self, number: int, cost: int = 0, tokens: int = 0, requests: int = 0) -> None:
        self.number = number
        self.cost = cost
        self.tokens = tokens
        self.requests = requests

    def turn(self, number: int) -> None:
        """Begins at zero where `number` is another period."""
        if number != self.number:
            self.number = number
            self.cost = self.tokens = self.requests = 0

    def book(self, cost: int, tokens: int, requests: int) -> None:
        self.cost += cost
        self.tokens += tokens
        self.requests += requests

    def row(self) -> tuple[int, int, int, int]:
        return self.number, self.cost, self.tokens, self.requests


class Account:
    """Not for several threads. `now`: monotonic seconds; `wall`: seconds since the epoch."""

    __slots__ = ("day", "in_flight", "key_id", "month", "requests", "reserved", "seconds", "tokens")

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.in_flight = 0
        self.reserved = 0
        self.seconds: deque[Second] = deque()
        self.requests = 0
        self.tokens = 0
        self.day = Period(0)
        self.month = Period(0)

    def reserve(self, key: Key, tokens: int, cost: int, now: float, wall: float, reservation_id: str) -> Held | Refusal:
        """Takes everything or, if one limit does not allow it, nothing."""
        self._turn(wall)
        limited = key.rpm is not None or key.tpm is not None
        if limited:
            self._forget(now)
        refused = self._refused(key, tokens, cost, now, wall)
        if refused is not None:
            return refused
        self.in_flight += 1
        self.reserved += cost
        second = self._admit(tokens, now) if limited else None
        rpm, tpm = key.rpm, key.tpm
        held = Held(
            reservation_id,
            self.key_id,
            tokens,
            cost,
            rpm,
            None if rpm is None else rpm - self.requests,
            tpm,
            None if tpm is None else tpm - self.tokens,
            self.seconds[0].at + WINDOW_S + 1 - now if limited else None,
        )
        held.account = self
        held.second = second
        return held

    def end(self, held: Held, tokens: int, cost: int, requests: int, wall: float) -> None:
        """Books what was used in place of what was held. `requests`: 1, or 0 where not even the request counts."""
        held.account = None
        self.in_flight -= 1
        self.reserved -= held.cost
        second = held.second
        if second is not None and second.counts:
            more, gone = tokens - held.tokens, 1 - requests
            second.tokens += more
            self.tokens += more
            second.requests -= gone
            self.requests -= gone
        self._turn(wall)
        self.day.book(cost, tokens, requests)
        self.month.book(cost, tokens, requests)

    def usage(self, wall: float) -> KeyUsage:
        self._turn(wall)
        return KeyUsage(self.key_id, *self.day.row()[1:], *self.month.row()[1:], self.in_flight, self.reserved)

    def _turn(self, wall: float) -> None:
        today = int(wall // DAY_S)
        # A clock that is set back over midnight forgets nothing.
        if today > self.day.number:
            self.day.turn(today)
            self.month.turn(month_of(today))

    def _forget(self, now: float) -> None:
        """Drops the seconds that are wholly older than the window."""
        oldest = floor(now) - WINDOW_S
        seconds = self.seconds
        while seconds and seconds[0].at < oldest:
            second = seconds.popleft()
            second.counts = False
            self.requests -= second.requests
            self.tokens -= second.tokens

    def _admit(self, tokens: int, now: float) -> Second:
        at = floor(now)
        if not self.seconds or self.seconds[-1].at < at:
            self.seconds.append(Second(at))
        second = self.seconds[-1]
        second.requests += 1
        second.tokens += tokens
        self.requests += 1
        self.tokens += tokens
        return second

    def _refused(self, key: Key, tokens: int, cost: int, now: float, wall: float) -> Refusal | None:
        # The longest wait first, so that nobody comes back in a second to hear of another limit.
        wanted = self.reserved + cost
        budget = key.budget_month
        if budget is not None and self.month.cost + wanted > budget:
            wait = month_left_s(wall) if self.month.cost + cost > budget else SOON_S
            return refusal(key, "budget_month_exceeded", tokens, wait)
        budget = key.budget_day
        if budget is not None and self.day.cost + wanted > budget:
            wait = day_left_s(wall) if self.day.cost + cost > budget else SOON_S
            return refusal(key, "budget_day_exceeded", tokens, wait)
        if key.rpm is not None and self.requests >= key.rpm:
            return refusal(key, "rate_limit_requests", tokens, self._wait(self.requests - key.rpm + 1, 0, now))
        if key.tpm is not None and self.tokens + tokens > key.tpm:
            return refusal(key, "rate_limit_tokens", tokens, self._wait(0, self.tokens + tokens - key.tpm, now))
        if key.concurrency is not None and self.in_flight >= key.concurrency:
            return refusal(key, "concurrency_limit", tokens, SOON_S)
        return None

    def _wait(self, requests: int, tokens: int, now: float) -> float:
        """Seconds until so many requests and tokens have left the window; its length if that never happens."""
        for second in self.seconds:
            requests -= second.requests
            tokens -= second.tokens
            if requests <= 0 and tokens <= 0:
                return second.at + WINDOW_S + 1 - now
        return float(WINDOW_S)
