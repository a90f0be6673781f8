"""What a store answers: a reservation, a refusal with its reason, and what a key has used."""

from dataclasses import dataclass
from typing import Literal

from router.limits.keys import Key
from router.record import NANO

RefusalCode = Literal[
    "rate_limit_requests",
    "rate_limit_tokens",
    "concurrency_limit",
    "budget_day_exceeded",
    "budget_month_exceeded",
]

WINDOW_S = 60
# Seconds until another try, where only requests under way stand against this one and nobody knows when they end.
SOON_S = 1.0


@dataclass(slots=True, eq=False)
class Reservation:
    """What one request holds of its key's limits, and what was left right after it; None where there is no limit."""

    id: str
    key_id: str
    tokens: int
    cost: int
    """Nano-USD."""
    limit_requests: int | None
    remaining_requests: int | None
    limit_tokens: int | None
    remaining_tokens: int | None
    reset_s: float | None
    """Seconds until the oldest of what was used leaves the window, and some of it comes back."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets nothing: `message` is for the client."""

    code: RefusalCode
    message: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What a key has used in this day and this month (UTC), as settled, and what it holds now. Money in nano-USD."""

    key_id: str
    day_cost: int
    day_tokens: int
    day_requests: int
    month_cost: int
    month_tokens: int
    month_requests: int
    in_flight: int
    reserved_cost: int


def refusal(key: Key, code: RefusalCode, tokens: int, retry_after_s: float) -> Refusal:
    """A refusal of a request that may need `tokens`, in words."""
    match code:
        case "rate_limit_requests":
            message = f"This key may send {_counted(key.rpm, 'request')} per minute, and has."
        case "rate_limit_tokens" if key.tpm is not None and tokens > key.tpm:
            message = (
                f"This request may need {tokens} tokens, and this key may use {key.tpm} per minute: "
                "ask for fewer output tokens."
            )
        case "rate_limit_tokens":
            message = f"This key may use {_counted(key.tpm, 'token')} per minute; this request may need {tokens}."
        case "concurrency_limit":
            message = f"This key may have {_counted(key.concurrency, 'request')} under way at once, and has."
        case "budget_day_exceeded":
            message = _budget(key.budget_day, "day", "at 00:00 UTC")
        case "budget_month_exceeded":
            message = _budget(key.budget_month, "month", "on the 1st at 00:00 UTC")
    return Refusal(code, message, retry_after_s)


def _counted(limit: int | None, noun: str) -> str:
    return f"{limit} {noun}{'' if limit == 1 else 's'}"


def _budget(limit: int | None, period: str, renewal: str) -> str:
    usd = f"{(limit or 0) / NANO:.9f}".rstrip("0").rstrip(".")
    return (
        f"What is left of this key's budget of {usd} USD a {period} does not cover this request; it renews {renewal}."
    )
