"""Measures the router beside other gateways: `python -m loadtests.router_peers --harness DIR --peers DIR`.

The harness runs each gateway in turn in front of one mock upstream, measures the CPU that it takes for a request, and
probes what it does when its client or its upstream misbehaves. This module starts our router in it with everything on
(a key with limits and budgets, prices, choice, metrics, access log), adds a soak and a comparison of one worker with
two, and writes `docs/benchmarks/router-peers.json` and the table into the page beside it.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from twinspeed import files, hardware, processes, provenance
from twinspeed.benchmark import Benchmark
from twinspeed.errors import InputError, TwinspeedError

NAME = "router-peers"
START, END = f"<!-- figures: {NAME} -->", "<!-- /figures -->"
_FOLDER = Path("docs/benchmarks")
_ADMIN_KEY = "benchmark"
# The harness asks for the pin, so that not even the model's name has to be edited.
_MODEL, _PIN = "mock-model", "mock-model:standard"
_PEERS = {"ours": "", "litellm": "litellm_", "vllm-router": "vllm_router_", "smg": "smg_"}
_ROWS = {"json c=32": "json_c32", "sse c=32": "sse_c32", "sse 8/s, 5 ms/chunk": "sse_paced"}
_SOAK_REQUESTS = 200_000
_WARM_UP_S, _SOAK_S = 10.0, 20.0

# What a gateway should do in each of the harness's probes.
_RIGHT: Mapping[str, str] = {
    "SSE stream with unknown fields": "byte-exact",
    "usage chunk, requested": "byte-exact",
    "usage chunk, not requested": "none to client.*",
    "SSE events split across TCP segments": "intact",
    "request body with unknown fields": "byte-exact",
    "JSON response with unknown fields": "byte-exact",
    "tool_calls deltas": "byte-exact",
    "client leaves mid-stream": r"upstream aborted after 0\..*",
    "client leaves before the first token, SSE": r"upstream aborted after 0\..*",
    "client leaves, JSON": r"upstream aborted after 0\..*",
    "500 once, JSON": "retried -> 200 .*",
    "500 once, SSE": "retried -> 200 .*",
    "503 once, JSON": "retried -> 200 .*",
    "connection dropped once, JSON": "retried -> 200 .*",
    "400 from upstream": "400, body byte-exact, 1 attempt",
    "429 with Retry-After: 7": r"429, Retry-After 7, 1 attempt, .*",
    "upstream dies mid-stream": r"error event after 0\..*, 1 attempt",
    "upstream stalls mid-stream": r"error event after 5\..*, 1 attempt",
    "upstream hangs, JSON": r"504 after 5\..*, 1 attempt",
}


@dataclass(frozen=True)
class Harness:
    """The folder of the harness, and a Python that has what it needs: uvicorn, uvloop and httptools."""

    folder: Path

    def run(self, *arguments: object) -> None:
        """Raises TwinspeedError where the harness fails."""
        command = [sys.executable, str(self.folder / "run.py"), *map(str, arguments)]
        if subprocess.run(command, check=False).returncode:
            raise TwinspeedError(f"{self.folder / 'run.py'} failed; its own lines above say why")

    def load(self, url: str, pid: int, seconds: float) -> dict[str, Any]:
        """What the load generator says of JSON requests over 32 connections."""
        command = [sys.executable, self.folder / "load.py", "--url", url, "--model", _PIN, "--pid", pid]
        command += ["--concurrency", 32, "--seconds", seconds]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def settings(folder: Path, *, upstream: str, port: int | str, workers: int = 1, auth: bool = True) -> str:
    """Our router's settings, in YAML."""
    document: dict[str, Any] = {
        "auth": "required" if auth else "off",
        "listen": {"port": port, "workers": workers},
        "state": {"url": f"sqlite:///{folder}/keys.sqlite3" if auth else "memory:"},
        "models": [{"name": _MODEL, "variants": {"standard": {"replicas": [upstream], "usd_per_hour": 2.0}}}],
        "lanes": {"interactive": {"timeouts": {"first_byte": 5.0, "between_bytes": 5.0}}},
        "access_log": f"{folder}/access.jsonl",
    }
    # JSON is YAML; a port to be filled in by the harness is no string.
    return json.dumps(document).replace('"{port}"', "{port}")


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[tuple[str, int]]:
    """Our router's URL and process id."""
    port = processes.free_port()
    path = folder / "running.yaml"
    path.write_text(settings(folder, port=port, **options))
    child = processes.start(processes.twinspeed_command("route", "serve", "--config", path))
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url)
        yield url, child.pid
    finally:
        processes.stop([child], 40)


def make_key(folder: Path) -> str:
    """A key with every limit, none of which is reached; its secret."""
    admin = processes.free_port()
    document = json.loads(settings(folder, upstream="http://127.0.0.1:9", port=processes.free_port()))
    document["admin"] = {"port": admin, "key_sha256": sha256(_ADMIN_KEY.encode()).hexdigest()}
    path = folder / "key.yaml"
    path.write_text(json.dumps(document))
    child = processes.start(processes.twinspeed_command("route", "serve", "--config", path))
    try:
        _wait_for(f"http://127.0.0.1:{document['listen']['port']}")
        limits = {"rpm": 10**9, "tpm": 10**12, "concurrency": 10**6, "budget_day_usd": 1e6, "budget_month_usd": 1e6}
        headers = {"authorization": f"Bearer {_ADMIN_KEY}", "content-type": "application/json"}
        request = Request(
            f"http://127.0.0.1:{admin}/admin/keys", json.dumps({"name": "benchmark", **limits}).encode(), headers
        )
        with urlopen(request, timeout=10) as response:
            return str(json.loads(response.read())["secret"])
    finally:
        processes.stop([child], 40)


def write_targets(harness: Harness, folder: Path, secret: str) -> Path:
    """The harness's own targets, and ours."""
    start = f"{sys.executable} -m twinspeed route serve --config {{tmp}}/router.yaml"
    ours = f'''
[[target]]
name = "ours"
start = "{start}"
base_url = "http://127.0.0.1:{{port}}"
model = "{_PIN}"
api_key = "{secret}"
version = "{sys.executable} -m pip show twinspeed"
files."router.yaml" = {json.dumps(settings(folder, upstream="{upstream}", port="{port}"))}
'''
    path = folder / "targets.toml"
    path.write_text((harness.folder / "targets.toml").read_text() + ours)
    return path


def measure(harness: Harness, peers: Path, only: str, rounds: int, seconds: float) -> tuple[dict[str, Any], str]:
    """The harness's results with our soak in them, and its table in Markdown."""
    with tempfile.TemporaryDirectory(prefix="router-peers-") as name:
        folder = Path(name)
        targets = write_targets(harness, folder, make_key(folder))
        common = ["--targets", targets, "--peers-dir", peers, "--out", folder / "out"]
        harness.run(*common, "--only", only, "--repeats", rounds, "--seconds", seconds)
        results: dict[str, Any] = json.loads((folder / "out" / "results.json").read_text())
        table = (folder / "out" / "table.md").read_text()
        port = processes.free_port()
        mock = processes.start([sys.executable, harness.folder / "mock_upstream.py", "--port", str(port)])
        try:
            _wait_for(f"http://127.0.0.1:{port}")
            results["soak"] = soak(harness, folder, f"http://127.0.0.1:{port}")
        finally:
            processes.stop([mock], 10)
    return results, table


def soak(harness: Harness, folder: Path, upstream: str) -> dict[str, float]:
    """Memory over many requests, and what a request costs with one worker and with two."""
    figures: dict[str, float] = {}
    with running(folder, upstream=upstream, auth=False) as (url, pid):
        first = harness.load(url, pid, _WARM_UP_S)
        requests, last = 0, first
        while requests < _SOAK_REQUESTS:
            last = harness.load(url, pid, _SOAK_S)
            requests += last["requests"]
        figures["soak_requests"] = float(requests)
        figures["soak_rss_growth_ratio"] = last["rss_mb"] / first["rss_mb"]
    one: list[float] = []
    two: list[float] = []
    for _ in range(3):
        for workers, found in ((1, one), (2, two)):
            with running(folder, upstream=upstream, auth=False, workers=workers) as (url, pid):
                harness.load(url, pid, 2)
                found.append(harness.load(url, pid, 5)["gateway_cpu_ms_per_req"])
    figures["workers_2_cpu_ratio"] = median(two) / median(one)
    return figures


def to_benchmark(results: Mapping[str, Any], rounds: int, command: str) -> Benchmark:
    """The figures under flat keys; medians of the rounds, with the lowest and the highest."""
    figures: dict[str, float] = dict(results["soak"])
    intervals: dict[str, tuple[float, float]] = {}
    versions = {"twinspeed": version("twinspeed"), "python": platform.python_version(), "uvloop": version("uvloop")}
    for target, prefix in _PEERS.items():
        found = results["targets"].get(target)
        if found is None:
            continue
        if prefix:
            versions[target] = found["version"] or "unknown"
        for phase, row in _ROWS.items():
            values = [run["gateway_cpu_ms_per_req"] for run in found["phases"][phase]]
            figures[f"{prefix}{row}_cpu_ms"] = median(values)
            intervals[f"{prefix}{row}_cpu_ms"] = min(values), max(values)
        passed = sum(bool(re.fullmatch(right, found["probes"].get(probe, ""))) for probe, right in _RIGHT.items())
        figures[f"{prefix}probes_passed"] = float(passed)
        paced = found["phases"]["json 30/s"]
        for percentile in ("p50", "p99"):
            figures[f"{prefix}json_added_{percentile}_ms"] = median(run["added_lat_ms"][percentile] for run in paced)
            ttft = [run["added_ttft_ms"][percentile] for run in found["phases"]["sse 8/s, 5 ms/chunk"]]
            figures[f"{prefix}sse_paced_added_ttft_{percentile}_ms"] = median(ttft)
    figures["probes_total"] = float(len(_RIGHT))
    return Benchmark(
        command=command,
        date=datetime.now(UTC),
        git_sha=provenance.git_sha(),
        machine=hardware.detect().describe(),
        versions=versions,
        seed=0,
        rounds=rounds,
        results=figures,
        intervals=intervals,
    )


def publish(benchmark: Benchmark, table: str, root: Path) -> None:
    """Writes the figures, and the table between its markers in the page beside them."""
    page = root / _FOLDER / f"{NAME}.md"
    text = page.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise InputError(f"{page} has no lines {START} and {END}: put them where the table belongs")
    files.write_atomically(page, f"{before}{START}\n{table.strip()}\n{END}{after}")
    files.write_atomically(root / _FOLDER / f"{NAME}.json", benchmark.model_dump_json(indent=2) + "\n")


def _wait_for(url: str) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            with urlopen(f"{url}/health", timeout=2):
                return
        except (URLError, OSError):
            if time.monotonic() > until:
                raise TwinspeedError(f"nothing answers at {url}") from None
            time.sleep(0.1)


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.router_peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--harness", type=Path, required=True, help="its folder: run.py, load.py, targets.toml …")
    parser.add_argument("--peers", type=Path, required=True, help="the folder with a virtual environment for each peer")
    parser.add_argument("--only", default=",".join(_PEERS), help="gateways, by their names in targets.toml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each phase in a round")
    given = parser.parse_args(arguments)
    try:
        if not (given.harness / "run.py").is_file():
            raise InputError(f"--harness {given.harness}: no run.py in it")
        results, table = measure(Harness(given.harness), given.peers.resolve(), given.only, given.rounds, given.seconds)
        publish(to_benchmark(results, given.rounds, "make bench-router"), table, Path())
    except TwinspeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    say(f"wrote {_FOLDER / NAME}.json and .md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
