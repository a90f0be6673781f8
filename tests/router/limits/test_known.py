"""Secrets that were looked up a moment ago."""

import asyncio
import os

import pytest

from router.limits import Key, KeySettings, known
from router.limits.known import KnownKeys
from tests.router.limits.bench import bench, opened, wait_until

pytestmark = pytest.mark.unit

KEY = Key("key_1", KeySettings(name="n"), 0)


class Server:
    """Knows some keys, and counts the questions."""

    def __init__(self, **keys: Key) -> None:
        self.keys: dict[bytes, Key] = {name.encode(): key for name, key in keys.items()}
        self.asked = 0

    async def find(self, hashed: bytes) -> Key | None:
        self.asked += 1
        await asyncio.sleep(0)
        return self.keys.get(hashed)


def test_a_key_is_looked_up_once_in_a_while_and_by_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(known, "monotonic", lambda: now)
    server = Server(a=KEY)

    async def main() -> None:
        nonlocal now
        keys = KnownKeys(server.find)
        for _ in range(10):
            assert await keys.get(b"a") is KEY
        assert server.asked == 1
        now += known.TTL_S * 0.6
        assert await asyncio.gather(*(keys.get(b"a") for _ in range(100))) == [KEY] * 100
        assert server.asked == 2
        server.keys.clear()
        now += known.TTL_S * 0.4
        assert await keys.get(b"a") is KEY
        now += known.TTL_S * 0.6
        assert await keys.get(b"a") is None

    asyncio.run(main())


def test_guessing_takes_bounded_memory_and_pushes_no_key_out() -> None:
    server = Server(a=KEY)

    async def main() -> None:
        keys = KnownKeys(server.find)
        assert await keys.get(b"a") is KEY
        for _ in range(20_000):
            assert await keys.get(os.urandom(32)) is None
        asked = server.asked
        assert await keys.get(b"a") is KEY
        assert server.asked == asked
        assert sum(len(room) for room in vars(keys).values() if isinstance(room, dict)) <= 2000

    asyncio.run(main())


def test_a_wrong_secret_that_is_sent_again_is_not_looked_up_again() -> None:
    server = Server()

    async def main() -> None:
        keys = KnownKeys(server.find)
        assert [await keys.get(b"wrong") for _ in range(10)] == [None] * 10
        assert server.asked == 1

    asyncio.run(main())


def test_a_secret_that_shares_only_its_hash_s_beginning_is_another() -> None:
    server = Server(abcdefgh1=KEY)

    async def main() -> None:
        keys = KnownKeys(server.find)
        assert await keys.get(b"abcdefgh1") is KEY
        assert await keys.get(b"abcdefgh2") is None

    asyncio.run(main())


def test_another_router_notices_that_a_key_was_revoked(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "TTL_S", 0.2)

    async def main() -> None:
        async with bench(shared_url) as b, opened(shared_url) as other:
            assert await other.authenticate(b.secret) == b.key
            await b.store.revoke_key(b.key.id)

            async def gone() -> bool:
                return await other.authenticate(b.secret) is None

            await wait_until(gone, timeout_s=1)

    asyncio.run(main())
