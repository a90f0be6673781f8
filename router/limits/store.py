"""What every store of keys and limits does.

Limits
    Rates are sliding windows in slots of one second. A request and its tokens count in the second in which it was
    admitted, until that second is wholly older than 60 s; so no 60 seconds ever hold more than the limit, the whole
    of it may come as one burst, and what was used comes back 60 to 61 s later. A settled request's tokens replace its
    reserved ones in its own second.
    A budget covers what was settled in the calendar day or month (UTC), plus everything that is reserved. A request is
    booked on the day on which it is settled.
    All limits are taken together or none is: a refused request uses nothing.

Stores
    `memory:` and `sqlite:` count in this process. SQLite keeps keys and settled use; rates and reservations end with
    the process, and so do, if it is killed, the last 0.1 s of what was settled.
    Redis and Postgres count for many routers, by the server's clock. Each operation is one script or function there.
    A reservation that is never settled, because its router died, ends after `lease_ttl_s` and is charged in full.
    What was settled is as durable as the server: Redis needs `appendonly yes` (and `maxmemory-policy noeviction`);
    Postgres commits asynchronously here and may lose its last 0.6 s if it crashes.
"""

from typing import Protocol

from pydantic import ValidationError

from router.limits.keys import Key, KeySettings
from router.limits.results import KeyUsage, Refusal, Reservation
from twinspeed.errors import TwinspeedError


class StoreUnavailable(TwinspeedError):
    """The server behind a store does not answer, or not as it should; nothing else in the router is wrong."""


class Store(Protocol):
    """Keys and their limits. One event loop's only. Every method but `open` raises StoreUnavailable."""

    async def open(self) -> None:
        """Raises InputError or TwinspeedError: the store cannot be used, and why."""

    async def close(self) -> None:
        """Writes what is not yet written, and lets go of the store."""

    async def create_key(self, settings: KeySettings) -> tuple[Key, str]:
        """A new key, and its secret, which is told this once."""

    async def revoke_key(self, key_id: str) -> bool:
        """Takes a key out of use; False if there is none. Other routers notice within 5 s."""

    async def list_keys(self) -> list[Key]:
        """The keys in use, oldest first."""

    async def authenticate(self, secret: str) -> Key | None:
        """The key with this secret, if it is in use."""

    async def reserve(self, key: Key, *, tokens: int, cost: int, now: float) -> Reservation | Refusal:
        """Takes one request, `tokens` and `cost` (nano-USD) from the key's limits.

        `now` is the caller's monotonic clock in seconds, which in-process stores count rates by. If the caller is
        cancelled meanwhile, nothing stays taken.
        """

    async def settle(self, reservation: Reservation, *, tokens: int, cost: int) -> None:
        """Replaces a reservation by what was used. Only the first settle or cancel of a reservation does anything."""

    async def cancel(self, reservation: Reservation, *, count_request: bool) -> None:
        """Ends a reservation of which nothing was used. `count_request`: it still counts as one request."""

    async def usage(self, key_id: str) -> KeyUsage | None:
        """What a key has used, also once it is revoked; None if there never was such a key."""


def stored_key(key_id: str, settings: str, created_at: int) -> Key:
    """A key from a store, its settings in JSON.

    Raises:
        StoreUnavailable: they are of another version of the router.
    """
    try:
        return Key(key_id, KeySettings.model_validate_json(settings), created_at)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise StoreUnavailable(
            f"state.url: the stored settings of {key_id} are of another version: {field}: {first['msg']}."
        ) from None


def reason(error: Exception) -> str:
    """What a library's error says, in one line without a full stop."""
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else "no answer in time"
