"""Real Redis and Postgres servers of Debian's packages, on free loopback ports, gone when their block ends."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypedDict

from twinspeed.processes import free_port

_STARTING_S = 30
# A Postgres that is ready says S or N to this; one that still starts says so in an error.
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class _User(TypedDict, total=False):
    user: str
    group: str
    extra_groups: Sequence[str]


@contextmanager
def redis_server(port: int | None = None, folder: Path | None = None, *options: str) -> Iterator[str]:
    """Yields the server's URL. It keeps everything in an append-only file in `folder`, or in one of its own."""
    binary = _program("redis-server", "redis-server")
    port = port or free_port()
    with _folder(folder) as place:
        settings = ("--bind", "127.0.0.1", "--dir", str(place), "--save", "", "--appendonly", "yes", *options)
        command = [binary, "--port", str(port), *settings]
        with _running(command, {}, signal.SIGTERM, lambda: _answers(port, b"PING\r\n", b"+-")):
            yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def postgres_server(*options: str) -> Iterator[str]:
    """Yields the URL of an empty database. The server runs as `postgres` where we are root, which it refuses to be."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    search = os.pathsep.join([*map(str, reversed(found)), os.environ.get("PATH", "")])
    initdb, postgres = (_program(name, "postgresql", search) for name in ("initdb", "postgres"))
    user: _User = {"user": "postgres", "group": "postgres", "extra_groups": ()} if os.geteuid() == 0 else {}
    port = free_port()
    with _folder(None) as place:
        if user:
            shutil.chown(place, "postgres", "postgres")
        data = place / "data"
        form = ("-U", "twinspeed", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        subprocess.run([initdb, "-D", str(data), *form], cwd=place, check=True, stdout=subprocess.DEVNULL, **user)
        settings = ("-h", "127.0.0.1", "-p", str(port), "-k", str(place), "-F", *options)
        # SIGINT: end now, and orderly.
        command = [postgres, "-D", str(data), *settings]
        with _running(command, user, signal.SIGINT, lambda: _answers(port, _SSL_REQUEST, b"SN")):
            yield f"postgresql://twinspeed@127.0.0.1:{port}/postgres"


def _program(name: str, package: str, search: str | None = None) -> str:
    path = shutil.which(name, path=search)
    if path is None:
        raise RuntimeError(f"{name} is not installed: apt-get install {package}")
    return path


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="twinspeed-service-") as path:
        yield Path(path)


@contextmanager
def _running(command: list[str], user: _User, stop: signal.Signals, ready: Callable[[], bool]) -> Iterator[None]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **user)
        try:
            deadline = time.monotonic() + _STARTING_S
            while not ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not start:\n{log.read().decode(errors='replace')}")
                time.sleep(0.02)
            yield
        finally:
            process.send_signal(stop)
            try:
                process.wait(_STARTING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(port: int, question: bytes, first: bytes) -> bool:
    """Whether the server's answer begins with one of the bytes in `first`."""
    try:
        with closing(socket.create_connection(("127.0.0.1", port), timeout=1)) as connection:
            connection.sendall(question)
            answer = connection.recv(1)
            return bool(answer) and answer in first
    except OSError:
        return False
