"""Which replica served a session's last turn; bounded in number and in time."""

from collections import OrderedDict
from dataclasses import dataclass

MAX_SESSIONS = 100_000
TTL_S = 3600.0

Key = tuple[str, str]
"""What was asked for (a goal or a pinned variant), and the client's name for the session."""


@dataclass(slots=True)
class Stay:
    """Where a session is, and the tokens of its last prompt, which that engine may have kept."""

    variant: str
    url: str
    tokens: int
    seen: float


class Sessions:
    """The sessions seen last."""

    __slots__ = ("_max", "_stays", "_ttl")

    def __init__(self, max_sessions: int = MAX_SESSIONS, ttl_s: float = TTL_S) -> None:
        self._max = max_sessions
        self._ttl = ttl_s
        self._stays: OrderedDict[Key, Stay] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stays)

    def get(self, key: Key, now: float) -> Stay | None:
        stay = self._stays.get(key)
        return stay if stay is not None and now - stay.seen < self._ttl else None

    def put(self, key: Key, variant: str, url: str, tokens: int, now: float) -> None:
        stays = self._stays
        stay = stays.get(key)
        if stay is None:
            stays[key] = Stay(variant, url, tokens, now)
            self._forget(now)
        else:
            stay.variant, stay.url, stay.tokens, stay.seen = variant, url, tokens, now
            stays.move_to_end(key)

    def _forget(self, now: float) -> None:
        stays = self._stays
        # At most two for the one that came, so that no request pays for a whole night's sessions.
        for _ in range(2):
            oldest = next(iter(stays.values()))
            if len(stays) > self._max or now - oldest.seen >= self._ttl:
                stays.popitem(last=False)
