"""Sends requests by many clients while everything around the router goes wrong; keeps what each of them saw."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.router.chaos.client import PATIENT, Connection, Manner, Reply
from tests.router.chaos.engines import Engine
from tests.router.chaos.router import RouterProcess
from tests.router.chaos.shapes import NAME, Shape, shapes, tag

_CLIENTS = 72
# Engines that may be in trouble at once.
_TROUBLES = 2
_LIMITS: dict[str, dict[str, object]] = {
    "free": {},
    "busy": {"concurrency": 6},
    "rpm": {"rpm": 400},
    "tpm": {"tpm": 8_000},
    "poor": {"budget_day_usd": 0.0008},
    "fast": {"models": [f"{NAME}:fast"]},
}
_SHARES = {"free": 0.66, "busy": 0.1, "rpm": 0.06, "tpm": 0.06, "poor": 0.06, "fast": 0.05, "": 0.01}


@dataclass(slots=True)
class Seen:
    """One request and what its client saw. `key` is the id of its key, or nothing; `poison` the fault it wants."""

    name: str
    shape: Shape
    key: str
    manner: Manner
    poison: str
    reply: Reply


@dataclass(slots=True)
class Storm:
    """`seen` by the request's id; `settings` counts what was written to the router's settings."""

    rng: random.Random
    router: RouterProcess
    engines: list[Engine]
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Id and secret, by name; the one without a name is no key."""
    kinds: list[Shape] = field(default_factory=shapes)
    seen: dict[str, Seen] = field(default_factory=dict)
    settings: dict[str, int] = field(default_factory=dict)
    _over: bool = False

    async def prepare(self, undisturbed: Mapping[str, int]) -> None:
        """Learns what answers have to be, from one engine of each variant at its port, and makes the keys."""
        await asyncio.gather(*(shape.learn(undisturbed) for shape in self.kinds))
        self.keys[""] = ("", "sk-ts-nobody")
        for name, limits in _LIMITS.items():
            made = await self.router.admin("POST", "/keys", {"name": name, **limits})
            self.keys[name] = (made["id"], made["secret"])

    async def rage(self, requests: int, seconds: float) -> None:
        """Until so many requests were sent or so much time has passed; afterwards everything is whole again."""
        calls = iter(range(requests))
        troubles = asyncio.Semaphore(_TROUBLES)
        trouble = [asyncio.create_task(self._trouble(engine, troubles)) for engine in self.engines]
        trouble.append(asyncio.create_task(self._upset()))
        deadline = asyncio.get_running_loop().time() + seconds
        clients = [asyncio.create_task(self._client(calls, deadline)) for _ in range(_CLIENTS)]
        try:
            await asyncio.gather(*clients)
            self._over = True
            await asyncio.gather(*trouble)
        finally:
            for task in (*clients, *trouble):
                task.cancel()
        self.router.write(self.router.document)
        self.router.reload()
        for engine in self.engines:
            await engine.post("/release")
            await engine.collect()

    async def calm(self, requests: int) -> list[Seen]:
        """Ordinary requests, one after another."""
        connection = await Connection.open(self.router.port)
        usual = [shape for shape in self.kinds if shape.weight >= 0.5]
        seen = []
        for _ in range(requests):
            call = self._call(self.rng.choice(usual), "free", PATIENT, "")
            seen.append(await self._send(connection, *call))
        connection.close()
        return seen

    async def _client(self, calls: Iterator[int], deadline: float) -> None:
        loop, rng = asyncio.get_running_loop(), self.rng
        connection: Connection | None = None
        weights = [shape.weight for shape in self.kinds]
        for _ in calls:
            if loop.time() >= deadline:
                break
            if connection is None or not connection.usable:
                connection = await Connection.open(self.router.port)
            [shape] = rng.choices(self.kinds, weights)
            [key] = rng.choices(tuple(_SHARES), tuple(_SHARES.values()))
            poison = rng.choice(("reset", "once:reset", "once:status=502", "once:bad-http", "status=400"))
            call = self._call(shape, key, self._manner(), poison if rng.random() < 0.01 else "")
            await self._send(connection, *call)
        if connection is not None:
            connection.close()

    def _call(self, shape: Shape, key: str, manner: Manner, poison: str) -> tuple[bytes, Seen]:
        name = tag(len(self.seen))
        key_id, secret = self.keys[key]
        headers = {"x_mock": poison} if poison else {}
        if self.rng.random() < 0.1:
            headers["x_twinspeed_lane"] = "batch"
        if self.rng.random() < 0.1:
            headers["x_session_id"] = f"s{self.rng.randrange(50)}"
        seen = self.seen[name] = Seen(name, shape, key_id, manner, poison, Reply())
        return shape.request(name, secret, **headers), seen

    async def _send(self, connection: Connection, request: bytes, seen: Seen) -> Seen:
        seen.reply = await connection.ask(request, seen.manner)
        return seen

    def _manner(self) -> Manner:
        rng = self.rng
        match rng.choices(("stay", "early", "soon", "midway", "dawdle", "half"), (85, 2, 5, 3, 4, 1))[0]:
            case "early":
                return Manner(leave_after_s=1e-6)
            case "soon":
                return Manner(leave_after_s=rng.uniform(0.001, 0.06))
            case "midway":
                return Manner(leave_after_bytes=rng.choice((1, 300, 1500, 50_000)))
            case "dawdle":
                return Manner(dawdle_s=rng.uniform(0.01, 0.5))
            case "half":
                return Manner(leave_after_s=0.02, send=rng.uniform(0.1, 0.95))
            case _:
                return PATIENT

    async def _trouble(self, engine: Engine, troubles: asyncio.Semaphore) -> None:
        while not self._over:
            await asyncio.sleep(self.rng.uniform(0.0, 1.5))
            async with troubles:
                if not self._over:
                    await engine.disturb(self.rng)

    async def _upset(self) -> None:
        while not self._over:
            kind = await self.router.upset(self.rng)
            self.settings[kind] = self.settings.get(kind, 0) + 1
