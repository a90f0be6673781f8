"""Keys and limits of many routers in Postgres: one function per operation, by the server's clock."""

import time
from typing import Protocol, cast

import asyncpg  # type: ignore[import-untyped]

from router.limits import postgres_schema
from router.limits.keys import Key
from router.limits.remote import CONNECTIONS, TIMEOUT_S, RemoteStore, Verdict
from router.limits.results import KeyUsage
from router.limits.store import StoreUnavailable, reason, stored_key

_RESERVE = "SELECT * FROM twinspeed_reserve($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_END = "SELECT twinspeed_end($1, $2, $3, $4, $5, $6)"
_USAGE = """
SELECT key_id, day_cost, day_tokens, day_requests, month_cost, month_tokens, month_requests, in_flight, reserved
FROM twinspeed_usage($1, $2)
"""
_INSERT = """
WITH key AS (INSERT INTO twinspeed_keys VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING)
INSERT INTO twinspeed_accounts (key_id) VALUES ($1) ON CONFLICT DO NOTHING
"""
_REVOKE = "UPDATE twinspeed_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING id"
_FIND = "SELECT id, settings, created_at FROM twinspeed_keys WHERE sha256 = $1 AND revoked_at IS NULL"
_LIST = "SELECT id, settings, created_at FROM twinspeed_keys WHERE revoked_at IS NULL ORDER BY created_at"
# The connection was lost: the server was restarted, or a proxy closed it. The internal error is what asyncpg raises
# where the server's farewell is still unread.
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
_FAILURES = (asyncpg.PostgresError, *_LOST)
_Row = tuple[object, ...]


class _Pool(Protocol):
    async def fetch(self, query: str, *arguments: object) -> list[_Row]: ...

    async def expire_connections(self) -> None: ...

    async def close(self) -> None: ...

    def terminate(self) -> None: ...


class PostgresStore(RemoteStore):
    """Its tables are made when it is opened."""

    def __init__(self, url: str, address: str, lease_ttl_s: float) -> None:
        """`address`: what of the URL may be shown."""
        super().__init__(lease_ttl_s)
        self._url = url
        self._address = address

    async def open(self) -> None:
        """Raises StoreUnavailable: the server cannot be reached, or refuses."""
        try:
            pool = await asyncpg.create_pool(
                self._url,
                min_size=1,
                max_size=CONNECTIONS,
                timeout=TIMEOUT_S,
                command_timeout=TIMEOUT_S,
                reset=_leave_as_it_is,
            )
        except (*_FAILURES, ValueError) as error:
            raise self._unavailable(error) from None
        try:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({postgres_schema.CREATION_LOCK})")
                await connection.execute(postgres_schema.TABLES)
                await connection.execute(postgres_schema.FUNCTIONS)
        except _FAILURES as error:
            pool.terminate()
            raise self._unavailable(error) from None
        self._pool: _Pool = pool

    async def list_keys(self) -> list[Key]:
        return [_key(row) for row in await self._fetch(_LIST)]

    async def usage(self, key_id: str) -> KeyUsage | None:
        [row] = await self._fetch(_USAGE, key_id, self.fixed_time)
        return (
            None
            if row[0] is None
            else KeyUsage(*cast("tuple[str, int, int, int, int, int, int, int, int]", tuple(row)))
        )

    async def _disconnect(self) -> None:
        await self._pool.close()

    async def _insert(self, key: Key, hashed: bytes) -> None:
        await self._fetch(_INSERT, key.id, hashed, key.settings.model_dump_json(), key.created_at)

    async def _revoke(self, key_id: str) -> bool:
        return bool(await self._fetch(_REVOKE, key_id, int(time.time())))

    async def _find(self, hashed: bytes) -> Key | None:
        rows = await self._fetch(_FIND, hashed)
        return _key(rows[0]) if rows else None

    async def _reserve(self, lease: str, key: Key, tokens: int, cost: int) -> Verdict:
        limits = (key.rpm, key.tpm, key.concurrency, key.budget_day, key.budget_month)
        [row] = await self._fetch(_RESERVE, key.id, self.fixed_time, lease, self._lease_ttl_s, tokens, cost, *limits)
        return Verdict(*cast("tuple[str, float, float, int, int, float]", tuple(row)))

    async def _end(self, key_id: str, lease: str, tokens: int, cost: int, requests: int) -> None:
        await self._fetch(_END, key_id, self.fixed_time, lease, tokens, cost, requests)

    async def _fetch(self, query: str, *arguments: object) -> list[_Row]:
        try:
            try:
                return await self._pool.fetch(query, *arguments)
            except TimeoutError:
                raise
            except _LOST:
                # The others are likely lost too.
                await self._pool.expire_connections()
                return await self._pool.fetch(query, *arguments)
        except _FAILURES as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        # asyncpg quotes a URL that it cannot read, with its password.
        why = "the URL cannot be read" if isinstance(error, ValueError) else reason(error)
        return StoreUnavailable(f"state.url: Postgres at {self._address}: {why}.")


def _key(row: _Row) -> Key:
    key_id, settings, created_at = cast("tuple[str, str, int]", tuple(row))
    return stored_key(key_id, settings, created_at)


async def _leave_as_it_is(_: object) -> None:
    """In place of asyncpg's reset, which is another round trip: nothing here changes a connection."""
