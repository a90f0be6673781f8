"""Hands items from the event loop to a thread, in batches, so that the loop neither waits nor wakes it each time."""

import asyncio
import enum
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

_logger = logging.getLogger(__name__)


class _Signal(enum.Enum):
    WAKE = enum.auto()
    CLOSE = enum.auto()


class BatchThread(Generic[ItemT]):
    """A bounded queue and the one thread that empties it.

    `handle` gets up to `chunk` items at a time, at once if so many are there and else `delay` seconds after the first
    came; what it raises is logged, and the chunk lost.
    """

    def __init__(
        self, name: str, handle: Callable[[list[ItemT]], None], *, capacity: int, chunk: int, delay: float
    ) -> None:
        self._handle = handle
        self._capacity = capacity
        self._chunk = chunk
        self._delay = delay
        self._queue: SimpleQueue[ItemT | _Signal] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: ItemT) -> bool:
        """False where the queue is full, or closed."""
        if self._queue.qsize() >= self._capacity:
            return False
        self._queue.put(item)
        return True

    def wake(self) -> None:
        """Has `handle` called soon, with no items if there are none."""
        self._queue.put(_Signal.WAKE)

    async def close(self, limit: float) -> bool:
        """Takes no more items; whether all those there were handled within `limit` seconds."""
        self._capacity = 0
        self._closing.set()
        self._queue.put(_Signal.CLOSE)
        await asyncio.to_thread(self._thread.join, limit)
        return not self._thread.is_alive()

    def _run(self) -> None:
        batch: list[ItemT | _Signal] = []
        while _Signal.CLOSE not in batch[-1:]:
            batch = [self._queue.get()]
            if self._queue.qsize() < self._chunk:
                self._closing.wait(self._delay)
            batch += [self._queue.get() for _ in range(min(self._queue.qsize(), self._chunk - 1))]
            items = [each for each in batch if not isinstance(each, _Signal)]
            try:
                self._handle(items)
            except Exception:
                _logger.exception("%s lost %d items", self._thread.name, len(items))
