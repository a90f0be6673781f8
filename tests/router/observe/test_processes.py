"""Metrics of several worker processes: whoever is asked answers for all, the dead included."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from router.observe import Observer
from tests.router.observe.samples import NAME, at, config, parse, read, record

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
SERVED = {"model": NAME, "variant": "fast"}
# Does what each line says: a number of requests to count, or `open` and a number of requests in flight.
WORKER = """
import asyncio, sys
from pathlib import Path
from router.observe import Observer
from tests.router.observe.samples import config, record
observer = Observer(config(), Path(sys.argv[1]))
number = int(sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    what, _, count = line.strip().partition(" ")
    if what == "count":
        for _ in range(int(count)):
            observer.observe(record(cost=1_000_000_000, status=200 + number))
    elif what == "start":
        for _ in range(int(count)):
            observer.started("fast")
        observer.replica("fast", "a:1", ready=number == 0, breaker_open=number == 0)
    elif what == "for-ever":
        while True:
            observer.observe(record())
            print("counted", flush=True)
    elif what == "close":
        asyncio.run(observer.close())
    print("done", flush=True)
"""


class Worker:
    def __init__(self, folder: Path, number: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, command: str) -> None:
        self.tell(command)
        assert self.answer() == "done"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def start(number: int = 0) -> Worker:
        worker = Worker(tmp_path, number)
        workers.append(worker)
        assert worker.answer() == "ready"
        return worker

    yield start
    for worker in workers:
        worker.kill()
        for stream in (worker.process.stdin, worker.process.stdout):
            assert stream is not None
            stream.close()


def test_a_scrape_shows_the_exact_sum_of_three_workers_at_work(start: Start, tmp_path: Path) -> None:
    workers = [start(number) for number in range(3)]
    for worker in workers:
        worker.tell("count 5000")
    asked = Observer(config(), tmp_path)
    asked.observe(record())
    while_at_work = read(asked)
    for worker in workers:
        assert worker.answer() == "done"
    page = read(asked)
    assert [at(page, "requests_total", status=f"20{each}", **SERVED) for each in range(3)] == [5001, 5000, 5000]
    assert at(page, "request_seconds_count", **SERVED) == 15_001
    assert at(page, "request_seconds_sum", **SERVED) == 15_001 * 2.5
    assert at(page, "request_seconds_bucket", le="2.5", **SERVED) == 15_001
    assert at(page, "cost_usd_total", **SERVED) == 15_001.5
    assert at(page, "tokens_total", kind="prompt", **SERVED) == 1_500_100
    counted = at(while_at_work, "request_seconds_count", **SERVED)
    assert counted is not None
    assert 1 <= counted <= 15_001
    asyncio.run(asked.close())


def test_the_counts_of_a_killed_worker_stay_and_its_gauges_go(start: Start, tmp_path: Path) -> None:
    killed, living = start(0), start(1)
    killed.do("start 3")
    living.do("start 5")
    killed.do("count 100")
    asked = Observer(config(), tmp_path)
    page = read(asked)
    assert at(page, "in_flight", variant="fast") == 8
    # The last word on a replica counts, and any worker's open breaker.
    assert at(page, "replica_ready", variant="fast", replica="a:1") == 0
    assert at(page, "breaker_open", replica="a:1") == 1
    killed.kill()
    page = read(asked)
    assert at(page, "requests_total", status="200", **SERVED) == 100
    assert at(page, "in_flight", variant="fast") == 5
    assert at(page, "breaker_open", replica="a:1") == 0
    asyncio.run(asked.close())


def test_a_worker_that_ends_in_order_leaves_its_counts_and_no_gauge(start: Start, tmp_path: Path) -> None:
    worker = start()
    worker.do("start 3")
    worker.do("count 100")
    worker.do("close")
    asked = Observer(config(), tmp_path)
    page = read(asked)
    assert at(page, "requests_total", status="200", **SERVED) == 100
    assert at(page, "in_flight", variant="fast") is None
    asyncio.run(asked.close())


def test_killed_in_the_middle_of_its_work_a_worker_loses_nothing_it_counted(start: Start, tmp_path: Path) -> None:
    worker = start()
    worker.tell("for-ever")
    counted = 0
    while counted < 500:
        assert worker.answer() == "counted"
        counted += 1
    worker.kill()
    assert worker.process.stdout is not None
    counted += worker.process.stdout.read().count("counted\n")
    asked = Observer(config(), tmp_path)
    # Its last one may have been counted and not been told.
    assert at(read(asked), "requests_total", status="200", **SERVED) in (counted, counted + 1)
    asyncio.run(asked.close())


def test_a_new_worker_goes_on_where_a_dead_one_stopped(start: Start, tmp_path: Path) -> None:
    for _ in range(4):
        worker = start()
        worker.do("start 2")
        worker.do("count 10")
        worker.kill()
    assert len(list(tmp_path.iterdir())) == 2
    worker = start()
    worker.do("start 1")
    asked = Observer(config(), tmp_path)
    page = read(asked)
    assert at(page, "requests_total", status="200", **SERVED) == 40
    assert at(page, "in_flight", variant="fast") == 1
    asyncio.run(asked.close())


def test_half_a_line_that_a_killed_worker_left_harms_nobody(start: Start, tmp_path: Path) -> None:
    worker = start()
    worker.do("count 10")
    worker.kill()
    [index] = tmp_path.glob("*.series")
    with index.open("a") as stream:
        stream.write('["twinspeed_router_requests_to')
    asked = Observer(config(), tmp_path)
    asked.observe(record(status=299))
    page = read(asked)
    alone = Observer(config())
    for _ in range(10):
        alone.observe(record(cost=1_000_000_000))
    alone.observe(record(status=299))
    assert page == read(alone)
    asyncio.run(asked.close())
    again = Observer(config(), tmp_path)
    assert read(again) == page
    asyncio.run(again.close())


def test_there_is_room_for_any_number_of_series(tmp_path: Path) -> None:
    one, other = Observer(config(), tmp_path), Observer(config(), tmp_path)
    for number in range(150):
        one.observe(record(model=f"m-{number}"))
    page = parse(asyncio.run(other.render()))
    assert [at(page, "tokens_total", model=f"m-{each}", variant="fast", kind="prompt") for each in range(150)] == (
        [100] * 150
    )
    asyncio.run(one.close())
    # Whoever comes next finds all of them again.
    again = Observer(config(), tmp_path)
    for number in range(150):
        again.observe(record(model=f"m-{number}"))
    page = read(other)
    assert [at(page, "cost_usd_total", model=f"m-{each}", variant="fast") for each in range(150)] == [3.0] * 150
    assert len(list(tmp_path.iterdir())) == 4
    asyncio.run(again.close())
    asyncio.run(other.close())


def test_a_request_that_ends_after_the_close_harms_no_other_file(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    observer = Observer(config(), metrics)
    asyncio.run(observer.close())
    # These take the numbers that the closed files had.
    others = [tmp_path / "one", tmp_path / "other"]
    with others[0].open("wb"), others[1].open("wb"):
        observer.observe(record())
    assert [each.read_bytes() for each in others] == [b"", b""]
