"""Several processes on one port: all serve, all are counted, one that dies is replaced, and a reload reaches each."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.mock_engine import MockEngine
from tests.servers import AppServer, HttpServer
from twinspeed import processes

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
REQUEST = {"model": NAME, "messages": [], "max_tokens": 3}


class Workers(HttpServer):
    """The router's command with two workers in front of one engine."""

    def __init__(self, folder: Path) -> None:
        self.engine = AppServer(MockEngine(f"{NAME}:standard"))
        self.settings = folder / "router.yaml"
        self.document: dict[str, Any] = {
            "auth": "off",
            "listen": {"port": 0, "workers": 2},
            "fleet": {"poll_interval": 0.1},
            "models": [{"name": NAME, "variants": {"standard": {"replicas": [self.engine.url]}}}],
        }
        self.write()
        command = processes.twinspeed_command("route", "serve", "--config", self.settings)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        ports = set()
        for _ in range(2):
            line = self.process.stderr.readline()
            found = re.search(r"Routing .* on http://127\.0\.0\.1:(\d+)/v1$", line)
            assert found, line
            ports.add(int(found[1]))
        [self.port] = ports

    def write(self) -> None:
        self.settings.write_text(yaml.safe_dump(self.document))

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def counted(self, **labels: str) -> float:
        text = self.request("GET", "/metrics").body.decode()
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        lines = [line for line in text.splitlines() if line.startswith("twinspeed_router_requests_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.engine.stop()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    running = Workers(tmp_path)
    yield running
    running.stop()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_all_workers_serve_and_any_of_them_counts_for_all(workers: Workers) -> None:
    before = [cpu_seconds(pid) for pid in workers.pids()]
    for _ in range(300):
        assert workers.post(CHAT, REQUEST).status == 200
    assert {workers.counted(status="200") for _ in range(10)} == {300}
    assert all(cpu_seconds(pid) > earlier for pid, earlier in zip(workers.pids(), before, strict=True))


def test_a_killed_worker_is_replaced_and_what_it_counted_stays(
    workers: Workers, eventually: Callable[..., bool]
) -> None:
    for _ in range(50):
        workers.post(CHAT, REQUEST)
    first, second = workers.pids()
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: len(workers.pids()) == 2 and first not in workers.pids(), 20)
    assert second in workers.pids()
    assert eventually(lambda: workers.post(CHAT, REQUEST).status == 200, 10)
    assert workers.counted(status="200") >= 50


def test_new_settings_reach_every_worker(workers: Workers, eventually: Callable[..., bool]) -> None:
    other = "acme/other"
    workers.document["models"].append(deepcopy(workers.document["models"][0]) | {"name": other})
    workers.write()
    workers.process.send_signal(signal.SIGHUP)

    def known() -> bool:
        listed = [json.loads(workers.request("GET", "/v1/models").body)["data"] for _ in range(8)]
        return all(any(model["id"] == other for model in models) for models in listed)

    assert eventually(known, 10)
    workers.document["models"] = []
    workers.write()
    workers.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert known()
    assert workers.post(CHAT, REQUEST).status == 200
