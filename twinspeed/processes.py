"""Child processes that end when we do, wait for as long as they may, and leave nobody behind."""

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from twinspeed.errors import InputError

_PR_SET_PDEATHSIG = 1
# Seconds within which the kernel ends a killed process, and its new parent reaps it, on a busy machine.
_DYING_S = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


def start(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child at the head of its own process group, which is sent SIGTERM should this process be killed.

    Its own group, so that Ctrl-C in the terminal reaches us alone and we decide in which order things stop.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            # The parent died between fork and prctl, so no signal will come.
            os._exit(1)

    return subprocess.Popen(
        [str(part) for part in command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def stop(children: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """SIGTERM to all, wait, then SIGKILL to what is left of each group, the children's own children included."""
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        kill_group(child)


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL every process of the group that `child` leads, reap `child`, and wait until the others are gone too.

    A killed engine gives its memory back page by page, which takes a while; whoever starts the next one needs it.
    """
    deadline = time.monotonic() + _DYING_S
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        while time.monotonic() < deadline:
            os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.01)
    child.wait()


def twinspeed_command(*arguments: str | Path) -> list[str]:
    """The command line of a Twinspeed command run by this very interpreter."""
    return [sys.executable, "-m", "twinspeed", *(str(argument) for argument in arguments)]


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_port(host: str, port: int) -> None:
    """Refuse a port that something else listens on, before anything is started.

    Raises:
        InputError: taken, or not ours to bind.
    """
    try:
        if not 0 <= port <= 65535:
            raise OSError(errno.EINVAL, "ports are 0 to 65535")
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise InputError(
            f"port {port} on {host} cannot be used ({error.strerror}): choose another with --port"
        ) from None
