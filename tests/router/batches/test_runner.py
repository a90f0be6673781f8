"""The runner by itself: how it closes, and what it costs the event loop that it shares with requests."""

import asyncio
import io
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from router.batches import BatchRunner, BatchStore, InputLimits
from router.batches.lines import validate
from router.batches.pace import in_thread
from router.batches.progress import Progress
from router.batches.recorder import Recorder
from router.batches.records import LineResult
from tests.router.batches.serving import CHAT, Engine, create, line, lines

pytestmark = pytest.mark.unit


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def test_requests_in_flight_get_the_grace_that_closing_gives(store: BatchStore) -> None:
    batch = create(store, lines(*(line(n, seconds=0.3) for n in range(100))))
    engine = Engine()

    async def main() -> None:
        runner = BatchRunner(store, engine, 4)
        await runner.open()
        await until(lambda: engine.running == 4)
        started = time.monotonic()
        await runner.close(grace=10)
        assert time.monotonic() - started < 2

    asyncio.run(main())
    assert engine.answered == len(engine.sent) == 4
    assert store.get_batch(batch.id, None).completed == 4


def test_closing_does_not_wait_for_a_request_that_is_to_be_sent_later(store: BatchStore) -> None:
    create(store, lines(line(1)))
    engine = Engine()
    engine.refuse_first, engine.retry_after = 1, "3600"

    async def main() -> None:
        runner = BatchRunner(store, engine, 4)
        await runner.open()
        await until(lambda: engine.sent and not engine.running)
        started = time.monotonic()
        await runner.close(grace=10)
        assert time.monotonic() - started < 2

    asyncio.run(main())


def test_closing_interrupts_a_long_validation(store: BatchStore) -> None:
    batch = create(store, b"".join(lines(line(n, text="x" * 1000)) for n in range(40_000)))
    engine = Engine()

    async def main() -> None:
        runner = BatchRunner(store, engine, 4)
        await runner.open()
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await runner.close()
        assert time.monotonic() - started < 0.3

    asyncio.run(main())
    assert (store.get_batch(batch.id, None).status, engine.sent) == ("validating", [])


def test_the_event_loop_goes_on_while_an_input_is_checked() -> None:
    content = b"".join(lines(line(n, text="x" * 1000)) for n in range(20_000))
    delays = []

    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            checking = asyncio.create_task(
                in_thread(executor, lambda pace: validate(io.BytesIO(content), CHAT, InputLimits(), pace))
            )
            while not checking.done():
                started = time.perf_counter()
                await asyncio.sleep(0.001)
                delays.append(time.perf_counter() - started - 0.001)
            assert await checking == (20_000, [])

    asyncio.run(main())
    # A thread that computes without a break makes it 5 ms.
    assert sorted(delays)[len(delays) // 2] < 0.003


def test_a_request_whose_sending_was_cut_off_is_sent_again(store: BatchStore) -> None:
    batch = create(store, lines(*(line(n) for n in range(10))))
    engine = Engine()

    async def cut_off_once(
        endpoint: str, body: bytes, owner: str | None, request_id: str
    ) -> tuple[int, dict[str, str], bytes]:
        answer = await engine(endpoint, body, owner, request_id)
        if engine.sent.count(3) == 1 and json.loads(body)["tag"] == 3:
            raise asyncio.CancelledError
        return answer

    async def main() -> None:
        runner = BatchRunner(store, cut_off_once, 4, poll=0.05)
        await runner.open()
        await until(lambda: store.get_batch(batch.id, None).status == "completed")
        await runner.close()

    asyncio.run(main())
    assert store.get_batch(batch.id, None).completed == 10
    assert sorted(engine.sent) == sorted([*range(10), 3])


def test_what_comes_while_the_last_results_are_written_is_recorded_too(store: BatchStore, tmp_path: Path) -> None:
    batch = create(store, lines(line(0), line(1)))
    progress = Progress(store, "one")
    [batch] = progress.claim(time.monotonic(), 10, [], 1)
    blocked = sqlite3.connect(tmp_path / "batches.sqlite3", isolation_level=None)

    async def main() -> None:
        async with Recorder(progress, batch) as recorder:
            blocked.execute("BEGIN IMMEDIATE")
            first = asyncio.create_task(recorder.record(lambda: LineResult(1, False, b"1")))
            begun = threading.Event()

            def make() -> LineResult:
                begun.set()
                return LineResult(2, False, b"2")

            second = asyncio.create_task(recorder.record(make))
            await until(begun.is_set)
            third = asyncio.create_task(recorder.record(lambda: LineResult(3, True, b"3")))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.1, blocked.execute, "ROLLBACK")
        await asyncio.gather(first, second, third)

    asyncio.run(main())
    blocked.close()
    assert progress.answered_lines(batch) == {1, 2, 3}
    batch = store.get_batch(batch.id, None)
    assert (batch.completed, batch.failed) == (2, 1)


def test_a_result_that_was_answered_is_recorded_though_the_runner_closes_at_once(store: BatchStore) -> None:
    batch = create(store, lines(*(line(n, seconds=0.01 if n < 4 else 60) for n in range(100))))
    engine = Engine()

    async def main() -> None:
        runner = BatchRunner(store, engine, 8)
        await runner.open()
        await until(lambda: engine.answered == 4)
        await runner.close()

    asyncio.run(main())
    assert store.get_batch(batch.id, None).completed == 4
    with store.database.reading() as connection:
        rows = connection.execute("SELECT line, failed, output FROM results ORDER BY line").fetchall()
    assert [(number, failed, json.loads(output)["custom_id"]) for number, failed, output in rows] == [
        (n + 1, 0, f"id-{n}") for n in range(4)
    ]


def test_more_batches_than_run_at_once_all_end(store: BatchStore) -> None:
    made = [create(store, lines(line(n))) for n in range(40)]

    async def main() -> None:
        runner = BatchRunner(store, Engine(), 4, poll=0.05)
        await runner.open()
        await until(lambda: all(store.get_batch(each.id, None).status == "completed" for each in made), 30)
        await runner.close()

    asyncio.run(main())
    assert store.get_batch(made[0].id, None).metadata == {"job": "night"}
