"""How often the router may try again, and which replicas it leaves alone for a while."""

import random

from router.config import Breaker, Retries

# Retries that may be made at once after a quiet time.
_BURST = 10.0


class RetryBudget:
    """Bounds retries to a share of the requests, so that a fleet in trouble is not given more to do."""

    def __init__(self, settings: Retries) -> None:
        self._settings = settings
        self._left = _BURST

    def request(self) -> None:
        """Counts one request, which earns a part of a retry."""
        self._left = min(_BURST, self._left + self._settings.budget)

    def take(self) -> bool:
        """Takes one retry, if one is left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def backoff(self, tries: int) -> float:
        """Seconds before the next try, after `tries` of them; with full jitter."""
        return random.uniform(0, min(self._settings.backoff_max, self._settings.backoff * 2 ** (tries - 1)))


class CircuitBreaker:
    """One replica's: closed, open for a time, then half open for one trial. Times in seconds of one clock."""

    __slots__ = ("_failures", "_opened_at", "_settings", "_trial")

    def __init__(self, settings: Breaker) -> None:
        self._settings = settings
        self._failures = 0
        self._opened_at: float | None = None
        self._trial = False

    def configure(self, settings: Breaker) -> None:
        """Takes other settings, and keeps its state."""
        self._settings = settings

    def is_open(self, now: float) -> bool:
        """Whether the replica gets nothing now; a trial under way keeps others away."""
        if self._opened_at is None:
            return False
        return self._trial or now - self._opened_at < self._settings.open_for

    def sent(self) -> None:
        """A request goes to the replica: where the breaker was open, this is the trial."""
        if self._opened_at is not None:
            self._trial = True

    def succeeded(self) -> None:
        """The engine answered, with whatever a client's request deserves: 4xx counts here too."""
        self._failures = 0
        self._opened_at = None
        self._trial = False

    def failed(self, now: float) -> None:
        """The engine could not be reached, broke off, was too slow, or answered 5xx."""
        self._failures += 1
        if self._trial or self._failures >= self._settings.failures:
            self._opened_at = now
        self._trial = False

    def undecided(self) -> None:
        """The client left before the engine had shown anything: a trial is open to the next."""
        self._trial = False
