"""Runs batches in one process: claims them, keeps the claims alive, and runs several side by side."""

import asyncio
import logging
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor

from router.batches.lines import InputLimits
from router.batches.progress import ClaimLostError, Progress
from router.batches.records import BatchRecord, BatchStatus
from router.batches.run import Lease, Means, NotFinishedError, Submit, run_batch
from router.batches.store import BatchStore

_AT_ONCE = 16
# Seconds that a batch is left alone after a run of it broke down.
_REST = 30.0
_THREADS = 4

_logger = logging.getLogger(__name__)


class BatchRunner:
    """Works on whatever batches in the store nobody works on.

    A claim stands for `lease` seconds and is renewed every `poll` seconds, which is also how soon a cancellation, and
    a batch made by another process, is seen. What a killed process worked on is taken over after `lease` seconds.
    """

    def __init__(
        self,
        store: BatchStore,
        submit: Submit,
        concurrency: int,
        *,
        limits: InputLimits | None = None,
        lease: float = 10.0,
        poll: float = 1.0,
    ) -> None:
        """`concurrency` requests are in flight at once, over all of this process's batches."""
        self._progress = Progress(store, f"{os.getpid()}-{secrets.token_hex(8)}")
        self._lease_s = lease
        self._poll = poll
        self._lease = Lease()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._running: dict[str, tuple[BatchStatus, asyncio.Task[None]]] = {}
        self._resting: dict[str, float] = {}
        self._loop: asyncio.Task[None]
        # Checking inputs and writing outputs takes long, and may not keep the loop's own threads from short work.
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="batches")
        self._means = Means(
            progress=self._progress,
            submit=submit,
            window=concurrency,
            slots=asyncio.Semaphore(concurrency),
            limits=limits or InputLimits(),
            executor=self._executor,
            lease=self._lease,
            closing=self._closing,
        )

    async def open(self) -> None:
        self._loop = asyncio.create_task(self._run())

    async def close(self, grace: float = 0.0) -> None:
        """Sends nothing more, gives requests in flight `grace` seconds, and lets go of the batches."""
        self._closing.set()
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        self._loop.cancel()
        for task in tasks:
            _end(task)
        await asyncio.gather(self._loop, *tasks, return_exceptions=True)
        await asyncio.to_thread(self._progress.release)
        self._executor.shutdown()

    def wake(self) -> None:
        """There may be a new batch."""
        self._wake.set()

    async def _run(self) -> None:
        broken = False
        while True:
            try:
                await self._look()
                broken = False
            except Exception:
                # Such as a full disk. The claims run out by themselves if it lasts.
                if not broken:
                    _logger.exception("The batches cannot be looked after; trying again every %g s.", self._poll)
                broken = True
            try:
                async with asyncio.timeout(self._poll):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _look(self) -> None:
        if self._running:
            now = time.monotonic()
            held = await asyncio.to_thread(self._progress.renew, now, self._lease_s)
            self._lease.until = now + self._lease_s
            for batch_id, (status, task) in self._running.items():
                # A cancelled batch is taken up anew, in its new state, once its task has ended.
                if batch_id not in held or (held[batch_id] == "cancelling" and status != "cancelling"):
                    _end(task)
        if self._closing.is_set():
            return
        now = time.monotonic()
        self._resting = {batch_id: until for batch_id, until in self._resting.items() if until > now}
        free = _AT_ONCE - len(self._running)
        if free > 0:
            avoided = [*self._running, *self._resting]
            claimed = await asyncio.to_thread(self._progress.claim, now, self._lease_s, avoided, free)
            if claimed and not self._running:
                self._lease.until = now + self._lease_s
            for batch in claimed:
                self._start(batch)

    def _start(self, batch: BatchRecord) -> None:
        task = asyncio.create_task(self._work(batch), name=batch.id)
        self._running[batch.id] = (batch.status, task)
        task.add_done_callback(lambda _: self._running.pop(batch.id))
        task.add_done_callback(lambda _: self._wake.set())

    async def _work(self, batch: BatchRecord) -> None:
        try:
            await run_batch(batch, self._means)
        except (ClaimLostError, NotFinishedError):
            # It is another runner's by now, or its state has changed and it is to be looked at again.
            return
        except Exception:
            _logger.exception("The run of %s broke down; trying again in %g s.", batch.id, _REST)
            self._resting[batch.id] = time.monotonic() + _REST


def _end(task: asyncio.Task[None]) -> None:
    # A second cancellation would interrupt what the first one set off, such as recording the last results.
    if not task.cancelling():
        task.cancel()
