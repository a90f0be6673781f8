"""What Redis and Postgres have in common: cached keys, and operations that end though their caller has gone."""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from itertools import count
from typing import NamedTuple, TypeVar, cast

from router.limits.keys import Key, KeySettings, digest, new_key
from router.limits.known import KnownKeys
from router.limits.periods import day_left_s, month_left_s
from router.limits.results import KeyUsage, Refusal, RefusalCode, Reservation, refusal
from router.limits.store import StoreUnavailable

_T = TypeVar("_T")

TIMEOUT_S = 10.0
CONNECTIONS = 16

_logger = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """A server's answer to a reservation."""

    refused: str
    """A refusal's code, or nothing."""
    wait_s: float
    """Seconds until another try makes sense; negative: until the budget's period ends."""
    at: float
    """The server's clock, in seconds since the epoch."""
    requests: int
    """In the window, with this one."""
    tokens: int
    reset_s: float


class RemoteStore(ABC):
    """Reservations have ids of our own making, so that every operation may be sent twice and counts once."""

    fixed_time: float | None = None
    """Stands for the server's clock (seconds since the epoch) in tests."""

    def __init__(self, lease_ttl_s: float) -> None:
        self._lease_ttl_s = lease_ttl_s
        self._known = KnownKeys(self._find)
        self._prefix = secrets.token_hex(8)
        self._numbers = count()
        self._unfinished: set[asyncio.Task[object]] = set()

    async def close(self) -> None:
        while self._unfinished:
            await asyncio.wait(self._unfinished)
        await self._disconnect()

    async def create_key(self, settings: KeySettings) -> tuple[Key, str]:
        key, secret, hashed = new_key(settings)
        await self._insert(key, hashed)
        return key, secret

    async def revoke_key(self, key_id: str) -> bool:
        revoked = await self._revoke(key_id)
        self._known.forget(key_id)
        return revoked

    async def authenticate(self, secret: str) -> Key | None:
        hashed = digest(secret)
        return None if hashed is None else await self._known.get(hashed)

    async def reserve(self, key: Key, *, tokens: int, cost: int, now: float) -> Reservation | Refusal:
        lease = f"{self._prefix}-{next(self._numbers)}"
        taking = self._start(self._reserve(lease, key, tokens, cost))
        try:
            verdict = await asyncio.shield(taking)
        except (asyncio.CancelledError, StoreUnavailable):
            # It may be taken all the same, and nobody will settle it.
            self._start(self._give_back(taking, key.id, lease))
            raise
        if verdict.refused:
            code = cast(RefusalCode, verdict.refused)
            wait = verdict.wait_s
            if wait < 0:
                wait = day_left_s(verdict.at) if code == "budget_day_exceeded" else month_left_s(verdict.at)
            return refusal(key, code, tokens, wait)
        rpm, tpm = key.rpm, key.tpm
        return Reservation(
            lease,
            key.id,
            tokens,
            cost,
            rpm,
            None if rpm is None else rpm - verdict.requests,
            tpm,
            None if tpm is None else tpm - verdict.tokens,
            None if rpm is None and tpm is None else verdict.reset_s,
        )

    async def settle(self, reservation: Reservation, *, tokens: int, cost: int) -> None:
        await asyncio.shield(self._start(self._book(reservation.key_id, reservation.id, tokens, cost, 1)))

    async def cancel(self, reservation: Reservation, *, count_request: bool) -> None:
        await asyncio.shield(self._start(self._book(reservation.key_id, reservation.id, 0, 0, int(count_request))))

    async def _give_back(self, taking: asyncio.Task[Verdict], key_id: str, lease: str) -> None:
        await asyncio.wait((taking,))
        await self._book(key_id, lease, 0, 0, 0)

    async def _book(self, key_id: str, lease: str, tokens: int, cost: int, requests: int) -> None:
        try:
            await self._end(key_id, lease, tokens, cost, requests)
        except StoreUnavailable as error:
            # Here and not by the caller, who may have gone.
            _logger.warning("%s A reservation of %s will be charged in full.", error, key_id)
            raise

    def _start(self, operation: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
        """Runs an operation in a task of its own, which `close` waits for."""
        task = asyncio.get_running_loop().create_task(operation)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[_T]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            # Else asyncio complains that nobody has read it, if the caller has gone.
            task.exception()

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def list_keys(self) -> list[Key]: ...

    @abstractmethod
    async def usage(self, key_id: str) -> KeyUsage | None: ...

    @abstractmethod
    async def _disconnect(self) -> None: ...

    @abstractmethod
    async def _insert(self, key: Key, hashed: bytes) -> None: ...

    @abstractmethod
    async def _revoke(self, key_id: str) -> bool: ...

    @abstractmethod
    async def _find(self, hashed: bytes) -> Key | None: ...

    @abstractmethod
    async def _reserve(self, lease: str, key: Key, tokens: int, cost: int) -> Verdict: ...

    @abstractmethod
    async def _end(self, key_id: str, lease: str, tokens: int, cost: int, requests: int) -> None:
        """Books what was used in place of what `lease` holds; nothing where it has ended before."""
