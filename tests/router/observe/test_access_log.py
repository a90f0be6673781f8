"""One JSON line for each request, whatever happens to the disk or to the reader."""

import asyncio
import dataclasses
import fcntl
import json
import logging
import os
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from router.observe import Observer, access_log
from router.observe.access_log import to_line
from router.observe.batch import BatchThread
from router.record import RequestRecord, Usage
from tests.router.observe.samples import at, config, read, record, refused
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
# Where each field of a record stands in a line. A new field has to be judged here: no line may carry a secret.
LOGGED = {
    "request_id": {"request_id"},
    "path": {"path"},
    "started_at": {"ts"},
    "key_id": {"key_id"},
    "model": {"model"},
    "variant": {"variant"},
    "replica": {"replica"},
    "reason": {"reason"},
    "lane": {"lane"},
    "tier": {"tier"},
    "stream": {"stream", "tpot_s"},
    "status": {"status"},
    "error": {"error"},
    "client_left": {"client_left"},
    "attempts": {"attempts"},
    "queue_s": {"queue_s"},
    "ttft_s": {"ttft_s", "tpot_s"},
    "e2e_s": {"e2e_s", "tpot_s"},
    "usage": {"prompt_tokens", "cached_tokens", "completion_tokens", "tpot_s"},
    "spent_tokens": {"spent_tokens"},
    "cost": {"cost_nano_usd"},
    "predicted_ttft_s": {"predicted_ttft_s"},
    "predicted_e2e_s": {"predicted_e2e_s"},
    "predicted_cost": {"predicted_cost_nano_usd"},
    "slo_ttft_s": {"slo_ttft_s"},
    "slo_tpot_s": {"slo_tpot_s"},
    "traceparent": {"traceparent"},
}


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0)


def log_to(path: str, *records: RequestRecord) -> Observer:
    """An observer, closed, that logged these."""
    observer = Observer(config(access_log=path))

    async def run() -> None:
        await observer.open()
        for each in records:
            observer.observe(each)
        await observer.close()

    asyncio.run(run())
    return observer


def test_a_line_holds_the_whole_record() -> None:
    assert json.loads(to_line(record(error="engine_failed"))) == {
        "ts": "2026-01-02T03:04:05.250000Z",
        "request_id": "r-1",
        "path": "/v1/chat/completions",
        "status": 200,
        "error": "engine_failed",
        "key_id": "k-1",
        "model": "acme/tiny-7b",
        "variant": "fast",
        "replica": "fast-7f3a90c2",
        "reason": "cheapest",
        "lane": "batch",
        "tier": "flex",
        "stream": True,
        "client_left": False,
        "attempts": 1,
        "queue_s": 0.75,
        "ttft_s": 0.5,
        "tpot_s": 0.05,
        "e2e_s": 2.5,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "completion_tokens": 41,
        "spent_tokens": 0,
        "cost_nano_usd": 1_500_000_000,
        "predicted_ttft_s": 0.25,
        "predicted_e2e_s": 2.5,
        "predicted_cost_nano_usd": 3_000_000_000,
        "slo_ttft_s": 0.4,
        "slo_tpot_s": 0.1,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }


def test_what_is_not_known_is_left_out() -> None:
    line = json.loads(to_line(refused()))
    assert None not in line.values()
    assert line.keys() & {"model", "ttft_s", "prompt_tokens", "traceparent"} == set()
    assert line["cost_nano_usd"] == 0


def test_each_field_of_a_record_is_logged_where_it_was_decided_and_nowhere_else() -> None:
    assert {field.name for field in dataclasses.fields(RequestRecord)} == LOGGED.keys()
    before = json.loads(to_line(record(error="engine_failed")))
    others: dict[str, object] = {"started_at": 1.0, "stream": False, "client_left": True, "usage": Usage(1, 2, 3)}
    for name, places in LOGGED.items():
        value = getattr(record(error="engine_failed"), name)
        other = others[name] if name in others else f"{value}x" if isinstance(value, str) else value + 1
        after = json.loads(to_line(record(**{"error": "engine_failed", name: other})))
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert changed == places, name


def test_a_key_sent_as_trace_context_stays_out_of_the_log() -> None:
    observer = Observer(config())
    finished = record(traceparent=None)
    observer.traceparent(finished, b"Bearer sk-secret")
    observer.traceparent(finished, b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-sk-secret")
    assert b"sk-secret" not in to_line(finished)
    observer.traceparent(finished, b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
    assert b"-b7ad6b7169203331-00" in to_line(finished)


def test_a_client_cannot_write_lines_of_its_own(tmp_path: Path) -> None:
    forged = 'x"}\n{"status":200}\r\u2028\x00\xff'
    log_to(str(tmp_path / "log"), record(request_id=forged))
    [line] = (tmp_path / "log").read_bytes().split(b"\n")[:-1]
    assert json.loads(line)["request_id"] == forged


def test_twenty_thousand_requests_are_logged_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    observer = Observer(config(access_log=str(path)))

    async def client(number: int) -> None:
        for each in range(200):
            observer.observe(record(request_id=f"{number}/{each}"))
            await asyncio.sleep(0.005)

    async def run() -> None:
        await observer.open()
        await asyncio.gather(*(client(number) for number in range(100)))
        await observer.close()

    asyncio.run(run())
    logged = [str(line["request_id"]).split("/") for line in lines(path)]
    assert len(logged) == 20_000
    for number in range(100):
        assert [int(each) for client_number, each in logged if client_number == str(number)] == list(range(200))
    page = read(observer)
    assert at(page, "access_log_dropped_total", reason="queue_full") == 0


def test_what_finds_no_room_is_counted_and_the_loop_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "_CLOSE_TIMEOUT", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    observer = Observer(config(access_log=str(pipe)))

    async def run() -> int:
        await observer.open()
        # Nobody reads, so the thread comes to wait in the middle of a write.
        for number in range(40_000):
            observer.observe(record(request_id=str(number)))
        await observer.close()
        return number + 1

    given = asyncio.run(run())
    dropped = at(read(observer), "access_log_dropped_total", reason="queue_full")
    assert dropped is not None
    assert dropped > given / 2
    os.set_blocking(reader, True)
    rest = b""
    while rest.count(b"\n") < given - dropped:
        rest += os.read(reader, 1 << 20)
    os.close(reader)
    assert rest.count(b"\n") == given - dropped
    assert [json.loads(line)["request_id"] for line in rest.splitlines()] == [str(each) for each in range(given)][
        : int(given - dropped)
    ]


def test_a_full_disk_is_reported_once_and_requests_go_on(caplog: pytest.LogCaptureFixture) -> None:
    observer = Observer(config(access_log="/dev/full"))

    async def run() -> None:
        await observer.open()
        for _ in range(500):
            observer.observe(record())
        await observer.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert at(read(observer), "access_log_dropped_total", reason="not_written") == 500
    [told] = caplog.records
    assert "/dev/full" in told.getMessage()


def test_a_line_that_the_disk_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = """
import asyncio, resource, sys
from router.observe import Observer
from tests.router.observe.samples import at, config, read, record
observer = Observer(config(access_log=sys.argv[1]))
def failed():
    return at(read(observer), "access_log_dropped_total", reason="not_written")
async def run():
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    await observer.open()
    for each in range(3):
        observer.observe(record(request_id=f"before-{each}"))
    while not await asyncio.to_thread(failed):
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    observer.observe(record(request_id="after"))
    await observer.close()
asyncio.run(run())
print(failed())
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    whole, half, after = path.read_text().splitlines()
    assert [json.loads(each)["request_id"] for each in (whole, after)] == ["before-0", "after"]
    assert half.startswith('{"ts"')
    assert float(answer.stdout) == 2


def test_a_reader_that_left_is_reported_and_a_new_one_gets_whole_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    observer = Observer(config(access_log=str(pipe)))

    def failed() -> float | None:
        return at(read(observer), "access_log_dropped_total", reason="not_written")

    async def run() -> bytes:
        await observer.open()
        os.close(reader)
        observer.observe(record())
        await asyncio.to_thread(wait_until, lambda: failed() == 1)
        second = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        observer.observe(record(request_id="again"))
        await observer.close()
        read_again = os.read(second, 1 << 20)
        os.close(second)
        return read_again

    with caplog.at_level(logging.WARNING):
        [line] = asyncio.run(run()).splitlines()
    assert json.loads(line)["request_id"] == "again"
    assert [told.levelname for told in caplog.records] == ["ERROR", "WARNING"]


def test_lines_of_several_processes_do_not_mix_in_a_pipe() -> None:
    code = """
import asyncio, sys
from router.observe import Observer
from tests.router.observe.samples import config, record
async def run():
    observer = Observer(config(access_log="-"))
    await observer.open()
    for each in range(1500):
        observer.observe(record(request_id=f"{sys.argv[1]}/{each}"))
    await observer.close()
asyncio.run(run())
"""
    reader, writer = os.pipe()
    workers = [subprocess.Popen([sys.executable, "-c", code, str(each)], cwd=ROOT, stdout=writer) for each in range(3)]
    os.close(writer)
    # Writers that find no room have to wait in the middle of what they write.
    wait_until(lambda: struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0] > 50_000)
    with open(reader) as stream:
        logged = [json.loads(line)["request_id"] for line in stream]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert sorted(logged) == sorted(f"{number}/{each}" for number in range(3) for each in range(1500))


def test_after_rotation_the_log_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    observer = Observer(config(access_log=str(path)))

    async def run() -> None:
        await observer.open()
        observer.observe(record(request_id="before"))
        await asyncio.to_thread(wait_until, lambda: path.stat().st_size > 0)
        path.rename(old)
        observer.reopen()
        # Even if no request comes.
        await asyncio.to_thread(wait_until, path.exists)
        observer.observe(record(request_id="after"))
        await observer.close()

    asyncio.run(run())
    assert [[line["request_id"] for line in lines(each)] for each in (old, path)] == [["before"], ["after"]]


def test_a_log_that_cannot_be_opened_again_goes_on_in_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "log"
    observer = Observer(config(access_log=str(path)))

    async def run() -> None:
        await observer.open()
        folder.rename(tmp_path / "moved")
        observer.reopen()
        observer.observe(record())
        await observer.close()

    asyncio.run(run())
    assert len(lines(tmp_path / "moved" / "log")) == 1
    assert "cannot be opened again" in caplog.text


def test_a_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"access_log .*missing/log.*No such file or directory"):
        log_to(str(tmp_path / "missing" / "log"))


def test_without_a_log_reopening_does_nothing() -> None:
    observer = Observer(config())
    observer.reopen()
    observer.observe(record())


@pytest.fixture
def restless() -> Iterator[None]:
    """Has threads interrupt each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_thread_that_falls_asleep_and_is_woken_again_and_again_misses_nothing(restless: None) -> None:
    handled: list[int] = []
    thread = BatchThread("test", handled.extend, capacity=1000, chunk=7, delay=0.0)
    thread.start()
    for number in range(30_000):
        assert thread.put(number)
        if number % 3 == 0:
            wait_until(lambda: handled[-1:] == [number])  # noqa: B023
    assert asyncio.run(thread.close(10.0))
    assert handled == list(range(30_000))
    assert not thread.put(0)


def test_a_thread_can_be_closed_at_any_moment(restless: None) -> None:
    async def run() -> None:
        for number in range(500):
            handled: list[int] = []
            thread = BatchThread("test", handled.extend, capacity=1000, chunk=7, delay=0.0)
            thread.start()
            for each in range(number % 20):
                thread.put(each)
            assert await thread.close(10.0)
            assert handled == list(range(number % 20))

    asyncio.run(run())


def test_closing_waits_for_no_more_items() -> None:
    handled: list[int] = []
    thread = BatchThread("test", handled.extend, capacity=10, chunk=2, delay=60.0)
    thread.start()
    thread.put(1)
    assert asyncio.run(thread.close(10.0))
    assert handled == [1]


def test_a_chunk_that_fails_is_logged_and_the_next_one_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    handled: list[int] = []

    def handle(items: list[int]) -> None:
        if 3 in items:
            raise ValueError("three")
        handled.extend(items)

    thread = BatchThread("test", handle, capacity=10, chunk=2, delay=0.0)
    for number in range(6):
        thread.put(number)
    thread.start()
    assert asyncio.run(thread.close(10.0))
    assert handled == [0, 1, 4, 5]
    assert "test lost 2 items" in caplog.text
