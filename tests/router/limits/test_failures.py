"""Processes that are killed, servers that restart, and answers that get lost."""

import asyncio
import json
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
import redis

from router.limits import StoreUnavailable
from router.limits.remote import RemoteStore
from tests.router.limits.bench import Bench, bench, opened, start_child, wait_until
from tests.services import redis_server
from twinspeed.processes import free_port

pytestmark = pytest.mark.unit


def test_what_a_killed_process_held_comes_back_and_is_charged_in_full(shared_url: str) -> None:
    async def main() -> None:
        limits = {"rpm": 100, "tpm": 100, "concurrency": 1, "budget_day_usd": 100e-9}
        async with bench(shared_url, lease_ttl_s=1, **limits) as b:
            with start_child("reserve_and_hang", shared_url, b.secret, 30, 60, 2) as child:
                assert child.stdout is not None
                assert json.loads(child.stdout.readline()) == "reserved"
                child.kill()
            b.store.fixed_time = None  # type: ignore[attr-defined]
            assert (await b.refused()).code == "concurrency_limit"
            usage = await b.usage()
            assert (usage.in_flight, usage.reserved_cost, usage.day_cost) == (1, 60, 0)

            async def free() -> bool:
                return (await b.usage()).in_flight == 0

            await wait_until(free)
            usage = await b.usage()
            assert (usage.reserved_cost, usage.day_cost, usage.day_tokens, usage.day_requests) == (0, 60, 30, 1)
            assert (await b.refused(cost=41)).code == "budget_day_exceeded"
            held = await b.reserve(cost=40)
            assert (held.remaining_requests, held.remaining_tokens) == (98, 70)

    asyncio.run(main())


def test_a_lease_ends_in_the_next_reservation_too_and_a_late_settlement_does_nothing(shared_url: str) -> None:
    async def main() -> None:
        async with bench(shared_url, concurrency=2, lease_ttl_s=100) as b:
            early = await b.reserve(5, 50)
            b.advance(50)
            late = await b.reserve(6, 60)
            b.advance(49.75)
            assert (await b.refused()).code == "concurrency_limit"
            b.advance(0.25)
            await b.reserve(7, 70)
            assert (await b.usage()).day_cost == 50
            await b.settle(early, 1, 1)
            await b.settle(late, 1, 1)
            usage = await b.usage()
            assert (usage.day_cost, usage.day_tokens, usage.day_requests) == (51, 6, 2)
            assert (usage.in_flight, usage.reserved_cost) == (1, 70)

    asyncio.run(main())


def test_a_reservation_that_is_sent_twice_is_taken_once(shared_url: str) -> None:
    async def main() -> None:
        async with bench(shared_url, rpm=2, tpm=20, concurrency=1, budget_day_usd=10e-9) as b:
            assert isinstance(b.store, RemoteStore)
            first = await b.store._reserve("lease-of-" + b.key.id, b.key, 10, 10)
            again = await b.store._reserve("lease-of-" + b.key.id, b.key, 10, 10)
            assert first == again
            assert first.refused == ""
            usage = await b.usage()
            assert (usage.in_flight, usage.reserved_cost) == (1, 10)

    asyncio.run(main())


def test_scripts_that_redis_has_forgotten_are_sent_again(redis_url: str) -> None:
    async def main() -> None:
        async with bench(redis_url, rpm=2) as b:
            held = await b.reserve()
            with redis.Redis.from_url(redis_url) as client:
                client.script_flush()
            await b.settle(held, 1, 1)
            assert (await b.reserve()).remaining_requests == 0

    asyncio.run(main())


def test_everything_in_redis_has_the_prefix(redis_url: str) -> None:
    async def main() -> None:
        async with bench(redis_url, rpm=2) as b:
            await b.reserve()

    asyncio.run(main())
    with redis.Redis.from_url(redis_url) as client:
        assert {name.split(b":")[0] for name in client.keys("*")} == {b"twinspeed"}


def test_a_redis_that_restarts_is_unavailable_and_then_as_it_was(tmp_path: Path) -> None:
    port = free_port()

    async def main() -> None:
        with redis_server(port, tmp_path) as url:
            store_opened = bench(url, rpm=5, tpm=100)
            b = await store_opened.__aenter__()
            held = await b.reserve(10, 10)
            await b.settle(await b.reserve(20, 20), 20, 20)
        with pytest.raises(StoreUnavailable, match=f"Redis at 127.0.0.1:{port}"):
            await b.try_reserve()
        with redis_server(port, tmp_path):
            await b.settle(held, 10, 10)
            usage = await b.usage()
            assert (usage.day_cost, usage.day_tokens, usage.in_flight) == (30, 30, 0)
            assert (await b.reserve()).remaining_requests == 2
            await store_opened.__aexit__(None, None, None)

    asyncio.run(main())


def test_lost_connections_to_postgres_are_made_anew(postgres_url: str) -> None:
    async def main() -> None:
        async with bench(postgres_url, rpm=100) as b:
            held = await asyncio.gather(*(b.reserve(1, 1) for _ in range(10)))
            admin = await asyncpg.connect(postgres_url)
            await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            await admin.close()
            await asyncio.gather(*(b.settle(each, 1, 1) for each in held))
            assert (await b.usage()).day_requests == 10

    asyncio.run(main())


def test_a_killed_process_loses_at_most_its_last_moments_and_leaves_a_sound_file(tmp_path: Path) -> None:
    seed = time.time_ns()
    print("seed", seed)
    generator = random.Random(seed)
    path = tmp_path / "limits.db"
    url = f"sqlite:///{path}"

    async def create() -> Bench:
        async with bench(url) as b:
            return b

    async def spent(b: Bench) -> int:
        async with opened(url) as store:
            usage = await store.usage(b.key.id)
            assert usage is not None
            assert usage.month_cost == usage.month_tokens == usage.month_requests
            return usage.month_cost

    b = asyncio.run(create())
    before = 0
    for _ in range(2):
        with start_child("settle_forever", url, b.secret) as child:
            assert child.stdout is not None
            first = child.stdout.readline()
            time.sleep(generator.uniform(1.3, 1.8))
            child.kill()
            settled = [json.loads(line) for line in [first, *child.stdout.read().splitlines()] if line.endswith("]")]
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        kept = asyncio.run(spent(b)) - before
        number, last = settled[-1]
        # The 0.1 s, and what a busy machine takes to write.
        safe = max((count for count, at in settled if at < last - 1), default=0)
        assert safe > 0
        assert safe <= kept <= number + 1
        before += kept


def test_a_sqlite_store_writes_while_it_runs_and_what_is_left_when_it_closes(tmp_path: Path) -> None:
    path = tmp_path / "limits.db"

    def written() -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT coalesce(sum(month_cost), 0) FROM used").fetchone()[0])

    async def main() -> None:
        async with bench(f"sqlite:///{path}") as b:
            for round_ in range(1, 4):
                await b.settle(await b.reserve(0, 5), 0, 5)

                async def kept(wanted: int = 5 * round_) -> bool:
                    await asyncio.sleep(0.01)
                    return written() == wanted

                await wait_until(kept, timeout_s=2)
            await b.settle(await b.reserve(0, 5), 0, 5)
            assert written() == 15
        assert written() == 20

    asyncio.run(main())


def test_use_that_cannot_be_written_is_kept_and_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "limits.db"

    async def failed() -> bool:
        await asyncio.sleep(0.01)
        return "no such table: used. What was used is kept" in caplog.text

    async def main() -> None:
        with closing(sqlite3.connect(path)) as other:
            async with bench(f"sqlite:///{path}") as b:
                other.execute("ALTER TABLE used RENAME TO away")
                await b.settle(await b.reserve(0, 5), 0, 5)
                await wait_until(failed)
                other.execute("ALTER TABLE away RENAME TO used")

                async def written() -> bool:
                    await asyncio.sleep(0.01)
                    return other.execute("SELECT day_cost FROM used").fetchall() == [(5,)]

                await wait_until(written)

    asyncio.run(main())
