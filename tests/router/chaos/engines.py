"""Mock engines in processes of their own, and all that is done to them, with the times at which it was."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.router.chaos.client import Reply, ask_once
from tests.router.chaos.shapes import NAME
from twinspeed import processes

_ENGINE = Path(__file__).parents[3] / "loadtests" / "mock_engine.py"
_PACE = ("--ttft-ms", "2", "--itl-ms", "1.5")
# The first word of what is done is its kind.
FAULTS = (
    "status=500",
    "status=503",
    "status=429",
    "reset",
    "bad-http",
    "die-after=0",
    "die-after=3",
    "cut-after=0",
    "cut-after=2",
    "hold-after=2",
    "garbage",
    "hang",
    "slow=15",
    "split",
    "burst=3",
)


@dataclass(slots=True)
class Spell:
    """What was done to an engine, from when until when it could be felt; the epoch's seconds."""

    kind: str
    start: float
    end: float = float("inf")


@dataclass(slots=True, eq=False)
class Engine:
    variant: str
    port: int
    process: subprocess.Popen[bytes]
    spells: list[Spell] = field(default_factory=list)
    attempts: list[tuple[float, str]] = field(default_factory=list)
    """When which request id came, as far as the engine lived to tell."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def replica(self) -> str:
        """As the router names it."""
        return f"{self.variant}-{zlib.crc32(self.url.encode()):08x}"

    def felt(self, start: float, end: float, *kinds: str) -> bool:
        """Whether anything, or one of these kinds, was done to it in that time."""
        return any(
            spell.start <= end and start <= spell.end and (not kinds or spell.kind.partition("=")[0] in kinds)
            for spell in self.spells
        )

    async def post(self, path: str, body: bytes = b"") -> Reply:
        return await ask_once(self.port, "POST", path, body)

    async def collect(self) -> None:
        """Before it is killed, and in the end."""
        reply = await ask_once(self.port, "GET", "/log?limit=100000")
        self.attempts += [(entry["at"], entry["request_id"]) for entry in json.loads(reply.body)["requests"]]

    async def disturb(self, rng: random.Random) -> None:
        kind = rng.choice(("kill", "kill", "stop", "stop", *FAULTS))
        spell = Spell(kind, time.time())
        self.spells.append(spell)
        match kind:
            case "kill":
                await self.collect()
                self.process.kill()
                self.process.wait()
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                self.process = start_process(self.variant, self.port)
                await until_up(self.port)
            case "stop":
                self.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(rng.choice((0.1, 0.5, 2.5)))
                self.process.send_signal(signal.SIGCONT)
            case _:
                await self.post("/fault", json.dumps({"x-mock": kind}).encode())
                await asyncio.sleep(rng.choice((0.2, 0.7, 1.5)))
                await self.post("/fault", b"{}")
                if kind.startswith(("hang", "hold")):
                    if rng.random() < 0.5:
                        # Longer than the router waits.
                        await asyncio.sleep(1.5)
                    await self.post("/release")
        spell.end = time.time()


def start_process(variant: str, port: int, pace: Sequence[str] = _PACE) -> subprocess.Popen[bytes]:
    return processes.start([sys.executable, _ENGINE, "--port", str(port), "--model", f"{NAME}:{variant}", *pace])


async def until_up(port: int) -> None:
    for _ in range(600):
        try:
            reply = await ask_once(port, "GET", "/health")
        except OSError:
            await asyncio.sleep(0.05)
            continue
        assert reply.status == 200
        return
    raise AssertionError(f"no engine at port {port}")


@asynccontextmanager
async def running(*variants: str, pace: Sequence[str] = _PACE) -> AsyncIterator[list[Engine]]:
    """One engine for each variant that is named."""
    ports = [processes.free_port() for _ in variants]
    engines = [Engine(name, port, start_process(name, port, pace)) for name, port in zip(variants, ports, strict=True)]
    try:
        for engine in engines:
            await until_up(engine.port)
        yield engines
    finally:
        for engine in engines:
            # What is stopped cannot be told to end.
            engine.process.kill()
            engine.process.wait()
