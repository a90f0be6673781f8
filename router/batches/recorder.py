"""Makes results durable in small groups, so that a fast batch does not wait for the disk once per request."""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from router.batches.progress import Progress
from router.batches.records import BatchRecord, LineResult

# Seconds that a result waits for others.
_GATHER = 0.02


class Recorder:
    """Records the results of one batch. An asynchronous context: what it was given is durable when it is left."""

    def __init__(self, progress: Progress, batch: BatchRecord) -> None:
        self._progress = progress
        self._batch = batch
        self._pending: list[Callable[[], LineResult]] = []
        self._wanted = asyncio.Event()
        self._group = asyncio.Event()
        self._closing = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._wanted.set()
        await asyncio.shield(self._task)
        if error is None and self._failure is not None:
            raise self._failure

    async def record(self, make: Callable[[], LineResult]) -> None:
        """Returns when what `make` gives, called in a thread, is durable; that it will be even if this is cancelled."""
        if self._failure is None:
            self._pending.append(make)
            self._wanted.set()
            await self._group.wait()
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        while not self._closing or self._pending:
            await self._wanted.wait()
            if not self._closing:
                await asyncio.sleep(_GATHER)
            pending, group = self._pending, self._group
            self._pending, self._group = [], asyncio.Event()
            if not self._closing:
                self._wanted.clear()
            try:
                if pending:
                    await asyncio.to_thread(self._commit, pending)
            except Exception as error:
                self._failure = error
                self._group.set()
                return
            finally:
                group.set()

    def _commit(self, pending: Sequence[Callable[[], LineResult]]) -> None:
        self._progress.record(self._batch, [make() for make in pending])
