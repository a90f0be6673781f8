"""Keeps one engine running: starts it, restarts it when it crashes, drains and stops it when told."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from serve.command import DRAIN_S, EngineCommand
from serve.logs import EngineLog
from twinspeed import processes
from twinspeed.errors import TwinspeedError


@dataclass(frozen=True)
class RestartPolicy:
    """When a crashed engine is started again, and when not any more."""

    first_delay_s: float = 1.0
    longest_delay_s: float = 30.0
    most_failures: int = 4
    steady_s: float = 60.0
    """An engine that answered for this long had a good start; failures before it are forgotten."""

    def delay_s(self, failures: int) -> float:
        return min(self.longest_delay_s, self.first_delay_s * 2.0 ** (failures - 1))


class Supervisor:
    """Runs one engine until told to stop.

    `run` returns once the engine has ended on request, and raises `TwinspeedError` with the engine's own last error
    once it has failed `most_failures` times in a row.
    """

    def __init__(
        self, command: EngineCommand, health_url: str, log: EngineLog, policy: RestartPolicy | None = None
    ) -> None:
        self._command = command
        self._health_url = health_url
        self._log = log
        self._policy = policy or RestartPolicy()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """First call: drain, then end. Second call: end now."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            steady = await self._run_once()
            if self._stopping.is_set():
                return
            failures = 1 if steady else failures + 1
            if failures >= self._policy.most_failures:
                raise TwinspeedError(
                    f"the engine ended {failures} times in a row and is given up; its last error: "
                    f"{self._log.last_error()}"
                )
            delay = self._policy.delay_s(failures)
            self._log.event(
                f"engine ended: {self._log.last_error()}; starting it again in {delay:g} s",
                level="ERROR",
                failures=failures,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _run_once(self) -> bool:
        """One life of the engine; whether it answered for long enough to count as a good start."""
        self._log.forget()
        child = processes.start(
            self._command.argv, env=self._command.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._log.event("engine started", pid=child.pid)
        loop = asyncio.get_running_loop()
        ended = loop.run_in_executor(None, child.wait)
        pumped = loop.run_in_executor(None, self._pump, child)
        ready_at: list[float] = []
        watcher = asyncio.create_task(self._watch(ready_at.append))
        stopper = asyncio.create_task(self._stopping.wait())
        try:
            await _first_of(ended, stopper)
            if self._stopping.is_set():
                await self._drain(child, ended)
        finally:
            watcher.cancel()
            stopper.cancel()
            # Whatever the leader left behind would keep the port, the memory and the log's pipe.
            processes.kill_group(child)
            await asyncio.gather(ended, pumped)
        self._log.event("engine ended", exit_code=child.returncode)
        return bool(ready_at) and time.monotonic() - ready_at[0] >= self._policy.steady_s

    async def _drain(self, child: subprocess.Popen[bytes], ended: "asyncio.Future[int]") -> None:
        self._log.event(f"stopping: requests under way have {DRAIN_S} s to finish")
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        hurry = asyncio.create_task(self._hurry.wait())
        await _first_of(ended, hurry, timeout_s=DRAIN_S + 10)
        hurry.cancel()

    def _pump(self, child: subprocess.Popen[bytes]) -> None:
        """Log what the engine and its children print, until the last of them has ended."""
        assert child.stdout is not None
        with child.stdout as output:
            for raw in output:
                self._log.line(raw.decode(errors="replace"))

    async def _watch(self, ready: Callable[[float], None]) -> None:
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(self._health_url) as response:
                        if response.status == 200:
                            break
                await asyncio.sleep(0.25)
        ready(time.monotonic())
        self._log.event("engine ready", seconds=round(time.monotonic() - started, 1))


async def _first_of(ended: "asyncio.Future[int]", told: "asyncio.Task[bool]", timeout_s: float | None = None) -> None:
    either: list[asyncio.Future[Any]] = [ended, told]
    await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
