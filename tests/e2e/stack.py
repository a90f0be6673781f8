"""`twinspeed` commands and `twinspeed up` as users run them, and what is left of them afterwards."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai

from twinspeed import processes

# A cold start compiles; on two busy cores that takes minutes.
READY_S = 900


@dataclass(frozen=True)
class Served:
    """A running `twinspeed up`."""

    url: str
    name: str
    engines: dict[str, str]
    logs: Path
    process: subprocess.Popen[bytes]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)


def twinspeed(*arguments: object) -> str:
    """Run a command to its end; its standard output."""
    command = processes.twinspeed_command(*map(str, arguments))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=READY_S)
    assert done.returncode == 0, f"{command} exited with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


@contextmanager
def up(release: Path, logs: Path) -> Iterator[Served]:
    """Serve a release as a user would, and stop it with SIGTERM."""
    port = processes.free_port()
    command = processes.twinspeed_command("up", "--release", release, "--port", str(port), "--logs", logs, "--json")
    child = processes.start(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        assert line, f"twinspeed up ended with {child.wait()}; its logs are in {logs}"
        ready = json.loads(line)
        yield Served(ready["url"], ready["models"][0], ready["engines"], logs, child)
    finally:
        processes.stop([child], 90)
        child.stdout.close()


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, whatever its group or session."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def still_running(pids: Sequence[int]) -> list[int]:
    """Those of the processes that have not ended; one that only waits to be reaped has."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            running.append(pid)
    return running
