"""Keys that were looked up a moment ago, so that not every request asks the server."""

import hmac
from collections.abc import Awaitable, Callable
from time import monotonic

from router.limits.keys import Key

# Seconds after which a revoked key stops, at the latest.
TTL_S = 5.0
_KEYS = 10_000
_STRANGERS = 1024
_INDEX = 8


class _Entry:
    __slots__ = ("expires", "hashed", "key", "refresh")

    def __init__(self, hashed: bytes, key: Key | None, now: float) -> None:
        self.hashed = hashed
        self.key = key
        self.expires = now + TTL_S
        self.refresh = now + TTL_S / 2


class KnownKeys:
    """Of bounded size. Secrets that are no key's have room of their own, so that guessing pushes no key out."""

    def __init__(self, find: Callable[[bytes], Awaitable[Key | None]]) -> None:
        self._find = find
        self._keys: dict[bytes, _Entry] = {}
        self._strangers: dict[bytes, _Entry] = {}

    async def get(self, hashed: bytes) -> Key | None:
        """The key whose secret has this SHA-256."""
        now = monotonic()
        index = hashed[:_INDEX]
        entry = self._keys.get(index) or self._strangers.get(index)
        if entry is not None and hmac.compare_digest(entry.hashed, hashed) and now < entry.expires:
            if now < entry.refresh or entry.key is None:
                return entry.key
            # One request looks again before it is late; the others do not wait for it.
            entry.refresh = entry.expires
        return self._remember(hashed, await self._find(hashed), now)

    def forget(self, key_id: str) -> None:
        """To be looked up again at once."""
        for index, entry in self._keys.items():
            if entry.key is not None and entry.key.id == key_id:
                del self._keys[index]
                return

    def _remember(self, hashed: bytes, key: Key | None, asked: float) -> Key | None:
        index = hashed[:_INDEX]
        room, other, size = (
            (self._strangers, self._keys, _STRANGERS) if key is None else (self._keys, self._strangers, _KEYS)
        )
        other.pop(index, None)
        room.pop(index, None)
        if len(room) >= size:
            del room[next(iter(room))]
        # Counted from before the server was asked: it may have answered just before the key was revoked.
        room[index] = _Entry(hashed, key, asked)
        return key
