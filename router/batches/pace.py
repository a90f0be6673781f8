"""Long work in a thread that leaves the interpreter to the event loop, and can be called off."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")

# Seconds. A thread that computes holds the interpreter for up to 5 ms at a time, which requests would wait for;
# so it works for a little while and then sleeps for longer.
_SHIFT = 0.0005
_BREAK = 0.001


class CalledOffError(Exception):
    """Nobody waits for the work any more."""


class Pace:
    """Handed to long work, which calls `step` between one small piece and the next."""

    def __init__(self) -> None:
        self._called_off = threading.Event()
        self._rest_at = time.monotonic() + _SHIFT

    def step(self) -> None:
        """Raises CalledOffError."""
        if self._called_off.is_set():
            raise CalledOffError
        if time.monotonic() >= self._rest_at:
            time.sleep(_BREAK)
            self._rest_at = time.monotonic() + _SHIFT

    def call_off(self) -> None:
        self._called_off.set()


async def in_thread(executor: Executor | None, work: Callable[[Pace], T]) -> T:
    """What `work` returns; without an executor the loop's own does it.

    When this is cancelled, it ends only after the work has ended too.
    """
    pace = Pace()
    running = asyncio.get_running_loop().run_in_executor(executor, work, pace)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        pace.call_off()
        await asyncio.wait([running])
        # So that its error, if it had one, is not reported as one that nobody saw.
        if not running.cancelled():
            running.exception()
        raise
