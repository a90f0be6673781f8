"""Keys and limits of many routers in Redis 7: one script per operation, by the server's clock."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError

from router.limits import redis_scripts
from router.limits.keys import Key
from router.limits.remote import CONNECTIONS, TIMEOUT_S, RemoteStore, Verdict
from router.limits.results import KeyUsage
from router.limits.store import StoreUnavailable, reason, stored_key
from twinspeed.errors import InputError

_ALL = "twinspeed:keys"
_IN_USE = "twinspeed:secrets"


class RedisStore(RemoteStore):
    """Everything lies below `twinspeed:`."""

    def __init__(self, url: str, address: str, lease_ttl_s: float) -> None:
        """`address`: what of the URL may be shown."""
        super().__init__(lease_ttl_s)
        self._address = address
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=TIMEOUT_S,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(ConstantBackoff(0.05), 1),
            )
        except ValueError:
            raise InputError(f"state.url: {address}: expected redis://USER:PASSWORD@HOST:PORT/NUMBER.") from None
        self._client = Redis.from_pool(pool)
        self._reserve_script = self._client.register_script(redis_scripts.RESERVE)
        self._end_script = self._client.register_script(redis_scripts.END)
        self._usage_script = self._client.register_script(redis_scripts.USAGE)
        self._list_script = self._client.register_script(redis_scripts.LIST)
        self._find_script = self._client.register_script(redis_scripts.FIND)

    async def open(self) -> None:
        """Raises StoreUnavailable: the server cannot be reached, or refuses."""
        try:
            with self._errors():
                await self._client.ping()
        except BaseException:
            await self._client.aclose()
            raise

    async def list_keys(self) -> list[Key]:
        with self._errors():
            found = await self._list_script((_IN_USE, _ALL))
        keys = [_key(key_id, record) for key_id, record in found]
        return sorted(keys, key=lambda key: key.created_at)

    async def usage(self, key_id: str) -> KeyUsage | None:
        with self._errors():
            if not await self._client.hexists(_ALL, key_id):
                return None
            figures = await self._usage_script(_account(key_id), (self._at(),))
        return KeyUsage(key_id, *map(int, figures))

    async def _disconnect(self) -> None:
        await self._client.aclose()

    async def _insert(self, key: Key, hashed: bytes) -> None:
        record = {"sha256": hashed.hex(), "settings": key.settings.model_dump_json(), "created_at": key.created_at}
        with self._errors():
            async with self._client.pipeline(transaction=True) as both:
                both.hset(_ALL, key.id, json.dumps(record))
                both.hset(_IN_USE, hashed.hex(), key.id)
                await both.execute()

    async def _revoke(self, key_id: str) -> bool:
        with self._errors():
            record = await self._client.hget(_ALL, key_id)
            return record is not None and await self._client.hdel(_IN_USE, json.loads(record)["sha256"]) == 1

    async def _find(self, hashed: bytes) -> Key | None:
        with self._errors():
            found = await self._find_script((_IN_USE, _ALL), (hashed.hex(),))
        return None if found is None else _key(*found)

    async def _reserve(self, lease: str, key: Key, tokens: int, cost: int) -> Verdict:
        limits = (key.rpm, key.tpm, key.concurrency, key.budget_day, key.budget_month)
        arguments = [self._at(), lease, self._lease_ttl_s, tokens, cost]
        arguments += ["" if limit is None else limit for limit in limits]
        with self._errors():
            answer: bytes = await self._reserve_script(_account(key.id), arguments)
        refused, wait, at, requests, used, reset = answer.decode().split()
        refused = "" if refused == "-" else refused
        return Verdict(refused, float(wait), float(at), int(requests), int(used), float(reset))

    async def _end(self, key_id: str, lease: str, tokens: int, cost: int, requests: int) -> None:
        with self._errors():
            await self._end_script(_account(key_id), (self._at(), lease, tokens, cost, requests))

    def _at(self) -> float | str:
        return "" if self.fixed_time is None else self.fixed_time

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"state.url: Redis at {self._address}: {reason(error)}.") from None


def _account(key_id: str) -> tuple[str, str, str]:
    return f"twinspeed:account:{key_id}", f"twinspeed:leases:{key_id}", f"twinspeed:window:{key_id}"


def _key(key_id: bytes, record: bytes) -> Key:
    stored = json.loads(record)
    return stored_key(key_id.decode(), stored["settings"], stored["created_at"])
