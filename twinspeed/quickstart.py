"""From nothing to a measured pair of speeds: the commands a user would type, one after the other.

Each step is one `twinspeed` command that knows what is already done, so running the quickstart again goes on where it
stopped.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twinspeed import processes
from twinspeed.console import console
from twinspeed.errors import InputError, TwinspeedError

CHECKPOINT = "smollm2"
_PREFERRED_PORT = 8000
# The stack's own limit on stopping, and some for its interpreter to end.
_STOP_S = 90.0


def quickstart(out: Path, *, rounds: int, keep: bool) -> None:
    """Build, serve and measure the two speeds of a small real model; the report goes to the folder `out`.

    Raises:
        TwinspeedError: a step failed; its own line has been printed above.
    """
    release = out / "release"
    _run("env", "create", "engine")
    _run("env", "create", "optimize")
    _run("checkpoint", "fetch", CHECKPOINT)
    _run("release", "build", CHECKPOINT, "--out", release)
    with _up(release, out / "logs") as url:
        _run("release", "measure", "--release", release, "--url", url, "--out", out, "--rounds", str(rounds))
        _say_what_next(url, out)
        if keep:
            console.print("Serving until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()


def _run(*arguments: str | Path) -> None:
    """Run one `twinspeed` command in sight of the user."""
    shown = _shown(*arguments)
    console.print(f"[bold]$ {shown}[/bold]")
    child = processes.start(processes.twinspeed_command(*arguments), stdout=sys.stdout.fileno(), stderr=None)
    try:
        exit_code = child.wait()
    finally:
        processes.stop([child], _STOP_S)
    if exit_code != 0:
        raise _Stopped(shown, exit_code)


@contextmanager
def _up(release: Path, logs: Path) -> Iterator[str]:
    """`twinspeed up` while the block runs; gives the router's URL once both variants have answered."""
    try:
        processes.require_port("127.0.0.1", _PREFERRED_PORT)
        port = _PREFERRED_PORT
    except InputError:
        port = processes.free_port()
    arguments = ("up", "--release", release, "--port", str(port), "--logs", logs)
    shown = _shown(*arguments)
    console.print(f"[bold]$ {shown}[/bold]")
    child = processes.start(processes.twinspeed_command(*arguments, "--json"), stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        if not line:
            raise _Stopped(shown, child.wait())
        yield str(json.loads(line)["url"])
    finally:
        processes.stop([child], _STOP_S)
        child.stdout.close()


def _say_what_next(url: str, out: Path) -> None:
    question = {"role": "user", "content": "Why does it rain?"}
    # At the API's default temperature of 1, a model this small says the oddest things.
    body = {"model": f"{CHECKPOINT}:fast", "messages": [question], "temperature": 0}
    console.print(f"Report: {out / 'report.html'} and {out / 'report.json'}")
    console.print("Try it, while it serves (`KEEP=1 make quickstart` keeps it serving):")
    print(
        f"curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'",
        flush=True,
    )


def _shown(*arguments: str | Path) -> str:
    return " ".join(["twinspeed", *map(str, arguments)])


class _Stopped(TwinspeedError):
    def __init__(self, command: str, exit_code: int) -> None:
        super().__init__(f"quickstart stopped at `{command}`; mend what it says and run quickstart again to go on")
        self.exit_code = exit_code if exit_code > 0 else 1
