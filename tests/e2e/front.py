"""`twinspeed route serve --config` in front of a release's running engines, with keys, as an operator would run it."""

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import yaml  # type: ignore[import-untyped]

from tests.e2e.stack import Served
from tests.servers import HttpServer
from twinspeed import processes

_ADMIN_KEY = "the administrators' key"
_USD_PER_HOUR = {"standard": 1.8, "fast": 0.9}
_START_S = 60
# One of the two tiny releases will do for what is the router's, and its engines run anyway for other tests.
ONE_RELEASE = pytest.mark.parametrize("tiny_release", ["tied"], indirect=True)
# Loading beside two engines on two cores, a client library alone can take seconds.
TIMEOUT_S = 120


@dataclass(frozen=True)
class Account:
    """An API key of the router."""

    front: "Front"
    id: str
    secret: str

    def openai(self) -> openai.OpenAI:
        url = f"{self.front.public.url}/v1"
        client = openai.OpenAI(base_url=url, api_key=self.secret, max_retries=0, timeout=TIMEOUT_S)
        return self.front.clients.enter_context(client)

    def anthropic(self) -> anthropic.Anthropic:
        url = self.front.public.url
        client = anthropic.Anthropic(base_url=url, api_key=self.secret, max_retries=0, timeout=TIMEOUT_S)
        return self.front.clients.enter_context(client)

    def usage(self) -> dict[str, int]:
        """What the router has booked on this key, once nothing of it is under way."""
        deadline = time.monotonic() + 10
        while True:
            answer = self.front.admin.request("GET", f"/admin/keys/{self.id}/usage", headers=_AS_ADMIN)
            assert answer.status == 200, answer.body
            usage: dict[str, int] = answer.json
            if usage["in_flight"] == 0:
                return usage
            assert time.monotonic() < deadline, f"requests stay under way: {usage}"
            time.sleep(0.02)


@dataclass(frozen=True)
class Front:
    """A running router. `clients` are closed with it."""

    name: str
    public: HttpServer
    admin: HttpServer
    engines: dict[str, str]
    clients: ExitStack

    def account(self, **limits: Any) -> Account:
        """A new API key."""
        answer = self.admin.post("/admin/keys", {"name": "a test", **limits}, _AS_ADMIN)
        assert answer.status == 201, answer.body
        return Account(self, answer.json["id"], answer.json["secret"])

    def metric(self, name: str, **labels: str) -> float:
        """One of the router's own metrics: the sum of its series that have the labels."""
        return _metric(self.public, name, labels)

    def engine_metric(self, variant: str, name: str) -> float:
        """The same of the variant's engine."""
        engine = HttpServer()
        engine.port = int(self.engines[variant].rpartition(":")[2])
        return _metric(engine, name, {})


_AS_ADMIN = {"authorization": f"Bearer {_ADMIN_KEY}"}


@contextmanager
def routing(served: Served, release: Path, folder: Path) -> Iterator[Front]:
    """Run a router with keys in front of `served`, which keeps its state in the new folder `folder`."""
    public, admin = HttpServer(), HttpServer()
    public.port, admin.port = processes.free_port(), processes.free_port()
    variants = {name: {"replicas": [url], "usd_per_hour": _USD_PER_HOUR[name]} for name, url in served.engines.items()}
    settings = {
        "listen": {"port": public.port},
        "admin": {"port": admin.port, "key_sha256": hashlib.sha256(_ADMIN_KEY.encode()).hexdigest()},
        "auth": "required",
        "models": [{"name": served.name, "release": str(release), "variants": variants}],
        "state": {"url": f"sqlite:///{folder}/keys.db", "folder": str(folder / "batches")},
    }
    folder.mkdir()
    config = folder / "router.yaml"
    config.write_text(yaml.safe_dump(settings))
    with (folder / "router.err").open("wb") as errors:
        child = processes.start(processes.twinspeed_command("route", "serve", "--config", config), stderr=errors)
    try:
        _wait_until_ready(public, child, folder / "router.err")
        with ExitStack() as clients:
            yield Front(served.name, public, admin, served.engines, clients)
    finally:
        processes.stop([child], 60)
    assert child.returncode == 0, (folder / "router.err").read_text()[-2000:]


def _wait_until_ready(public: HttpServer, child: subprocess.Popen[bytes], errors: Path) -> None:
    """Until every variant has a replica that is ready."""
    deadline = time.monotonic() + _START_S
    health = "nothing"
    while time.monotonic() < deadline:
        assert child.poll() is None, errors.read_text()[-2000:]
        try:
            health = public.request("GET", "/health").body.decode()
            if all(all(model.values()) for model in json.loads(health)["models"].values()):
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"no router is ready: {health}; {errors.read_text()[-2000:]}")


def _metric(server: HttpServer, name: str, labels: dict[str, str]) -> float:
    series = [line.rpartition(" ") for line in server.request("GET", "/metrics").body.decode().splitlines()]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(value)
        for key, _, value in series
        if key.partition("{")[0] == name and all(label in key for label in wanted)
    )
