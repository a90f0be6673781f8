"""The router's command on a settings file, with its admin API, its access log and what the kernel knows of it."""

import asyncio
import hashlib
import json
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.router.chaos.client import Reply, ask_once
from tests.router.chaos.engines import Engine, Spell
from tests.router.chaos.shapes import NAME
from twinspeed import processes

_ADMIN_KEY = "the administrators' key"
_READY_S = 20.0
# Seconds after a spell in which it may still be felt: a replica is looked at every 0.2 s, and an open breaker lets a
# trial through after 0.5 s.
AFTERMATH_S = 1.5
_TIMEOUTS = {"connect": 1.0, "first_byte": 1.5, "between_bytes": 1.5, "total": 15.0}
_LANE = {"queue": 512, "max_wait": 5.0, "timeouts": _TIMEOUTS}


class RouterProcess:
    """Started and stopped by `running`."""

    def __init__(self, folder: Path, engines: list[Engine], *, state: str | None, workers: int) -> None:
        self.folder = folder
        self.port, self._admin_port = processes.free_port(), processes.free_port()
        self.log = folder / "access.jsonl"
        self.errors = folder / "stderr.txt"
        self._settings = folder / "router.yaml"
        self._engines = engines
        variants: dict[str, dict[str, Any]] = {}
        for engine in engines:
            variants.setdefault(engine.variant, {"replicas": []})["replicas"].append(engine.url)
        variants["standard"] |= {"usd_per_hour": 2.5, "max_in_flight": 16}
        # Lossless, so that the bare name may be served by either.
        variants["fast"] |= {"usd_per_hour": 2.0, "max_in_flight": 16, "lossless_to": "standard"}
        self.document: dict[str, Any] = {
            "listen": {"port": self.port, "workers": workers},
            "admin": {"port": self._admin_port, "key_sha256": hashlib.sha256(_ADMIN_KEY.encode()).hexdigest()},
            "state": {"url": state or f"sqlite:///{folder / 'state.db'}"},
            "access_log": str(self.log),
            "fleet": {"poll_interval": 0.2, "slow_start": 0},
            "breaker": {"open_for": 0.5},
            "lanes": {"interactive": _LANE, "batch": _LANE},
            "models": [{"name": NAME, "variants": variants}],
        }
        self.write(self.document)
        command = processes.twinspeed_command("route", "serve", "--config", self._settings)
        with self.errors.open("wb") as errors:
            self.process = processes.start(command, stderr=errors)

    def write(self, document: dict[str, Any]) -> None:
        # As an editor does, or a mounted ConfigMap.
        new = self._settings.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.replace(self._settings)

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    async def admin(self, method: str, path: str, data: object = None) -> Any:
        body = b"" if data is None else json.dumps(data).encode()
        reply = await ask_once(
            self._admin_port,
            method,
            f"/admin{path}",
            body,
            content_type="application/json",
            authorization=f"Bearer {_ADMIN_KEY}",
        )
        assert reply.status < 300, reply.body
        return json.loads(reply.body)

    async def usage(self, key_id: str) -> dict[str, int]:
        used: dict[str, int] = await self.admin("GET", f"/keys/{key_id}/usage")
        return used

    async def get(self, path: str) -> Reply:
        return await ask_once(self.port, "GET", path)

    async def metric(self, name: str) -> float:
        """The sum of all samples of that name."""
        text = (await self.get("/metrics")).body.decode()
        families = text_string_to_metric_families(text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    async def until_ready(self) -> None:
        """All replicas of the settings as they were first are there and ready."""
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            try:
                models = json.loads((await self.get("/health")).body)["models"]
                if sum(models[NAME].values()) == len(self._engines) and len(models) == 1:
                    return
            except OSError:
                pass
            assert self.process.poll() is None, self.errors.read_text()
            await asyncio.sleep(0.05)
        raise AssertionError("the replicas did not become ready")

    def entries(self) -> Iterator[dict[str, Any]]:
        """The access log's lines."""
        with self.log.open() as lines:
            for line in lines:
                yield json.loads(line)

    def pids(self) -> list[int]:
        """Of the process that was started, or of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return list(map(int, children)) if self.document["listen"]["workers"] > 1 else [self.process.pid]

    def files(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids())

    def megabytes(self) -> float:
        """Of memory in use."""
        lines = [line for pid in self.pids() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    async def upset(self, rng: random.Random) -> str:
        """Writes other settings; what they change, or `invalid` for what has to be refused."""
        document = deepcopy(self.document)
        [model] = document["models"]
        variant = rng.choice(tuple(model["variants"].values()))
        kind = rng.choice(("replica", "replica", "lanes", "retries", "places", "price", "model", "same", "invalid"))
        spell: Spell | None = None
        match kind:
            case "replica":
                removed = variant["replicas"].pop(rng.randrange(len(variant["replicas"])))
                [engine] = [engine for engine in self._engines if engine.url == removed]
                spell = Spell("removed", time.time())
                engine.spells.append(spell)
            case "lanes":
                document["lanes"]["interactive"] = {**_LANE, "queue": rng.choice((0, 4, 1000))}
            case "retries":
                hedge = rng.choice((None, 0.05))
                document["retries"] = {"attempts": rng.randint(1, 5), "budget": rng.choice((0.1, 1.0))}
                document["retries"]["hedge_after"] = hedge
                document["breaker"] = {"failures": rng.randint(1, 8), "open_for": 0.2}
            case "places":
                variant["max_in_flight"] = rng.choice((2, 8, 64))
            case "price":
                variant["usd_per_hour"] = rng.choice((0.5, 9.0))
            case "model":
                dead = f"http://127.0.0.1:{processes.free_port()}"
                document["models"].append({"name": "acme/dead", "variants": {"standard": {"replicas": [dead]}}})
            case "invalid":
                rng.choice(_SPOIL)(document)
        self.write(document)
        if rng.random() < 0.5:
            self.reload()
        await asyncio.sleep(rng.choice((0.1, 1.0, 3.0)))
        if spell is not None:
            self.write(self.document)
            self.reload()
            spell.end = time.time()
        return kind


_SPOIL = (
    lambda document: document["models"].clear(),
    lambda document: document["listen"].update(port=1),
    lambda document: document["lanes"].update(fast_lane={}),
    lambda document: document["models"][0]["variants"]["standard"].update(replicas=["http://127.0.0.1:1/v1"]),
    lambda document: document["state"].update(url="memory:"),
    lambda document: document.update(models=[{"name": NAME, "release": "/nowhere", **document["models"][0]}]),
    lambda document: document.update(admin=None),
)


@asynccontextmanager
async def running(
    folder: Path, engines: list[Engine], *, state: str | None = None, workers: int = 1
) -> AsyncIterator[RouterProcess]:
    """Ends without a kill, or fails."""
    router = RouterProcess(folder, engines, state=state, workers=workers)
    try:
        await router.until_ready()
        yield router
        router.process.send_signal(signal.SIGTERM)
        try:
            ended = await asyncio.to_thread(router.process.wait, 15)
        except subprocess.TimeoutExpired:
            raise AssertionError("the router did not stop though nothing was under way") from None
        assert ended == 0, router.errors.read_text()
    finally:
        processes.kill_group(router.process)
