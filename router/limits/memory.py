"""Keys and limits in this process: nothing outlives it."""

import hmac
import secrets
import time
from itertools import count

from router.limits.account import Account, Held
from router.limits.keys import Key, KeySettings, digest, new_key
from router.limits.results import KeyUsage, Refusal, Reservation

# Bytes of a secret's SHA-256 to look it up by; the rest is compared in constant time.
_INDEX = 8


class MemoryStore:
    """Its `authenticate`, `reserve`, `settle` and `cancel` never wait."""

    fixed_time: float | None = None
    """Stands for the clock (seconds since the epoch) in tests."""

    def __init__(self) -> None:
        self._keys: dict[bytes, tuple[bytes, Key]] = {}
        """Those in use, with their secret's SHA-256."""
        self._accounts: dict[str, Account] = {}
        """Revoked keys' too."""
        self._prefix = secrets.token_hex(8)
        self._numbers = count()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def create_key(self, settings: KeySettings) -> tuple[Key, str]:
        key, secret, hashed = new_key(settings)
        self._add(key, hashed, Account(key.id))
        return key, secret

    async def revoke_key(self, key_id: str) -> bool:
        return self._remove(key_id)

    async def list_keys(self) -> list[Key]:
        return [key for _, key in self._keys.values()]

    async def authenticate(self, secret: str) -> Key | None:
        hashed = digest(secret)
        if hashed is None:
            return None
        found = self._keys.get(hashed[:_INDEX])
        return found[1] if found is not None and hmac.compare_digest(found[0], hashed) else None

    async def reserve(self, key: Key, *, tokens: int, cost: int, now: float) -> Reservation | Refusal:
        number = f"{self._prefix}-{next(self._numbers)}"
        return self._accounts[key.id].reserve(key, tokens, cost, now, self._wall(), number)

    async def settle(self, reservation: Reservation, *, tokens: int, cost: int) -> None:
        self._end(reservation, tokens, cost, 1)

    async def cancel(self, reservation: Reservation, *, count_request: bool) -> None:
        self._end(reservation, 0, 0, int(count_request))

    async def usage(self, key_id: str) -> KeyUsage | None:
        account = self._accounts.get(key_id)
        return None if account is None else account.usage(self._wall())

    def _wall(self) -> float:
        return time.time() if self.fixed_time is None else self.fixed_time

    def _add(self, key: Key, hashed: bytes, account: Account) -> None:
        self._keys[hashed[:_INDEX]] = hashed, key
        self._accounts[key.id] = account

    def _remove(self, key_id: str) -> bool:
        for index, (_, key) in self._keys.items():
            if key.id == key_id:
                del self._keys[index]
                return True
        return False

    def _end(self, reservation: Reservation, tokens: int, cost: int, requests: int) -> Account | None:
        """Returns the account that something was booked in; None where the reservation had ended before."""
        assert isinstance(reservation, Held), "a reservation of another store"
        account = reservation.account
        if account is not None:
            account.end(reservation, tokens, cost, requests, self._wall())
        return account
