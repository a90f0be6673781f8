"""Real processes that are killed, or stopped, in the middle of a batch: no line is lost, none is answered twice."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from router.batches import BatchStore
from router.batches.records import BatchRecord
from tests.router.batches.serving import create, line, lines
from tests.router.batches.worker import CONCURRENCY, fails

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
Start = Callable[[], subprocess.Popen[bytes]]


class Job:
    """A batch of `total` requests in a folder, and what its workers have logged."""

    def __init__(self, folder: Path, total: int) -> None:
        self.total = total
        self.seed = str(random.randrange(1 << 32))
        print("seed", self.seed)
        self.folder = folder / "state"
        self.log = folder / "log"
        self.log.touch()
        self.store = BatchStore(self.folder)
        self.store.open()
        self.id = create(self.store, lines(*(line(n) for n in range(total)))).id

    def sent(self) -> list[tuple[int, int]]:
        """Process and tag of every request, in the order in which they were sent."""
        return [(int(pid), int(tag)) for pid, tag in (each.split() for each in self.log.read_text().splitlines())]

    def durable(self) -> set[int]:
        """The tags that have a result on disk; tag n stands on line n + 1."""
        with self.store.database.reading() as connection:
            rows = connection.execute("SELECT line FROM results WHERE batch = ?", (self.id,))
            return {row[0] - 1 for row in rows}

    def batch(self) -> BatchRecord:
        return self.store.get_batch(self.id, None)

    def wait_for_sent(self, count: int, by: int | None = None) -> None:
        deadline = time.monotonic() + 30
        while sum(by in (None, pid) for pid, _ in self.sent()) < count:
            assert time.monotonic() < deadline, self.batch()
            time.sleep(0.01)

    def wait_for_end(self) -> None:
        deadline = time.monotonic() + 60
        while self.batch().status != "completed":
            assert time.monotonic() < deadline, self.batch()
            time.sleep(0.05)

    def check_accounts(self) -> None:
        batch = self.batch()
        expected = {n: fails(self.seed, n) for n in range(self.total)}
        failing = sum(expected.values())
        assert (batch.total, batch.completed, batch.failed) == (self.total, self.total - failing, failing)
        for file_id, failed in ((batch.output_file_id, False), (batch.error_file_id, True)):
            assert file_id is not None
            found = [json.loads(each) for each in self.store.blobs.path(file_id).read_bytes().splitlines()]
            # Each once, in the input's order, with its own answer.
            tags = [n for n in range(self.total) if expected[n] is failed]
            assert [each["custom_id"] for each in found] == [f"id-{n}" for n in tags]
            assert [each["response"]["body"] for each in found] == [{"tag": n} for n in tags]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, 2000)
    yield made
    made.store.close()


@pytest.fixture
def start(job: Job) -> Iterator[Start]:
    """Starts a worker whose claims stand for a second."""
    workers: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.router.batches.worker", job.folder, job.log, job.seed, "1"]
        workers.append(subprocess.Popen([str(part) for part in command], cwd=ROOT))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()
        worker.wait()


def kill(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


def stop_between_transactions(job: Job, worker: subprocess.Popen[bytes]) -> None:
    """Inside of one it would keep everybody from writing for as long as it is stopped."""
    for _ in range(100):
        worker.send_signal(signal.SIGSTOP)
        with closing(sqlite3.connect(job.folder / "batches.sqlite3", timeout=0.1, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                worker.send_signal(signal.SIGCONT)
            else:
                return
        time.sleep(random.random() * 0.01)
    pytest.fail("it is never between two transactions")


def test_a_killed_batch_goes_on_where_it_was(job: Job, start: Start) -> None:
    seen = 0
    for _ in range(2):
        worker = start()
        seen += random.randrange(200, 500)
        job.wait_for_sent(seen)
        kill(worker)
        sent, durable = job.sent(), job.durable()
        batch = job.batch()
        assert batch.completed + batch.failed == len(durable)
        # Only what was in flight, or waited for the disk, has no result.
        assert len({tag for _, tag in sent} - durable) <= CONCURRENCY
        begun = len(sent)
        worker = start()
        job.wait_for_sent(begun + 1)
        kill(worker)
        assert not {tag for _, tag in job.sent()[begun:]} & durable
        seen = len(job.sent())
    start()
    job.wait_for_end()
    job.check_accounts()


def test_a_kill_while_the_files_are_written_does_no_harm(job: Job, start: Start) -> None:
    def there() -> set[str]:
        return {path.name for path in job.store.blobs.path("").iterdir()}

    for _ in range(4):
        before = there()
        worker = start()
        deadline = time.monotonic() + 60
        while there() == before:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        kill(worker)
    start()
    job.wait_for_end()
    job.check_accounts()


def test_of_two_processes_one_runs_a_batch_and_the_other_takes_over(job: Job, start: Start) -> None:
    first, second = start(), start()
    job.wait_for_sent(500)
    [runner] = {pid for pid, _ in job.sent()}
    running, waiting = (first, second) if runner == first.pid else (second, first)
    kill(running)
    killed = time.monotonic()
    begun, durable = len(job.sent()), job.durable()
    job.wait_for_sent(1, by=waiting.pid)
    assert time.monotonic() - killed < 3
    job.wait_for_end()
    assert {pid for pid, _ in job.sent()[:begun]} == {running.pid}
    assert {pid for pid, _ in job.sent()[begun:]} == {waiting.pid}
    assert not {tag for _, tag in job.sent()[begun:]} & durable
    job.check_accounts()


def test_a_process_that_was_stopped_for_too_long_has_lost_its_batch(job: Job, start: Start) -> None:
    first = start()
    job.wait_for_sent(300)
    stop_between_transactions(job, first)
    second = start()
    job.wait_for_sent(100, by=second.pid)
    before = len(job.sent())
    first.send_signal(signal.SIGCONT)
    job.wait_for_end()
    assert {pid for pid, _ in job.sent()[before:]} == {second.pid}
    job.check_accounts()
