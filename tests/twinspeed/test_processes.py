import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twinspeed import processes
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
WAIT = "import time; print('ready', flush=True); time.sleep(600)"
# Starts a child through us, tells its process id, and waits to be killed.
PARENT = f"""
import subprocess, sys, time
from twinspeed import processes
child = processes.start([sys.executable, "-c", {WAIT!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
# Has a child that ignores SIGTERM, as vLLM has its engine core; tells its process id once it does.
LEADER = f"""
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", {IGNORE + "; " + WAIT!r}], stdout=subprocess.PIPE)
inner.stdout.readline()
print(inner.pid, flush=True)
time.sleep(600)
"""

Start = Callable[[str], tuple[subprocess.Popen[bytes], str]]


def is_running(pid: int) -> bool:
    """Whether the process exists; one that is dead and only waits to be reaped does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def ends(pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


@pytest.fixture
def start() -> Iterator[Start]:
    """Runs a program as a child of ours; gives it and the first line that it prints."""
    children: list[subprocess.Popen[bytes]] = []

    def run(program: str) -> tuple[subprocess.Popen[bytes], str]:
        child = processes.start([sys.executable, "-c", program], stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        return child, child.stdout.readline().decode().strip()

    yield run
    for child in children:
        processes.kill_group(child)
        assert child.stdout is not None
        child.stdout.close()


def test_a_child_leads_a_group_of_its_own_and_reads_nothing(start: Start) -> None:
    child, answer = start("import os, sys; print(os.getpgrp(), os.getsid(0), repr(sys.stdin.read()))")
    assert answer == f"{child.pid} {child.pid} ''"


def test_a_child_sees_the_environment_it_is_given(tmp_path: Path) -> None:
    program = "import os, sys; sys.exit(os.environ.get('ONLY') != 'this' or 'TWINSPEED_HOME' in os.environ)"
    assert processes.start([sys.executable, "-c", program], env={"ONLY": "this"}).wait() == 0


def test_children_end_when_the_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    assert ends(child)


def test_children_that_heed_sigterm_are_stopped_together_and_in_order(start: Start) -> None:
    children = [start(WAIT)[0] for _ in range(3)]
    started = time.monotonic()
    processes.stop(children, 30)
    assert time.monotonic() - started < 10
    assert [child.returncode for child in children] == [-signal.SIGTERM] * 3


def test_a_child_has_the_time_it_is_given_to_end_in_order(start: Start) -> None:
    program = f"""
import signal, sys, time
def drain(number, frame):
    time.sleep(0.5)
    sys.exit(7)
signal.signal(signal.SIGTERM, drain)
{WAIT}
"""
    child, _ = start(program)
    processes.stop([child], 30)
    assert child.returncode == 7


def test_a_child_that_ignores_sigterm_is_killed_with_its_whole_group(start: Start) -> None:
    child, inner = start(f"{IGNORE}\n{LEADER}")
    started = time.monotonic()
    processes.stop([child], 0.3)
    assert 0.3 <= time.monotonic() - started < 10
    assert child.returncode == -signal.SIGKILL
    assert ends(int(inner))


def test_what_a_child_leaves_behind_when_it_ends_in_order_is_killed(start: Start) -> None:
    child, inner = start(LEADER)
    processes.stop([child], 30)
    assert child.returncode == -signal.SIGTERM
    assert ends(int(inner))


def test_what_a_child_left_behind_when_it_died_is_killed(start: Start) -> None:
    child, inner = start(LEADER)
    child.kill()
    child.wait()
    assert is_running(int(inner))
    processes.stop([child], 30)
    assert ends(int(inner))


def test_all_children_share_one_deadline(start: Start) -> None:
    children = [start(f"{IGNORE}\n{WAIT}")[0] for _ in range(3)]
    started = time.monotonic()
    processes.stop(children, 1)
    assert time.monotonic() - started < 2.5
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 3


def test_stopping_what_has_ended_changes_nothing(start: Start) -> None:
    child, _ = start("print('done')")
    assert child.wait() == 0
    processes.stop([child], 30)
    processes.stop([child], 30)
    processes.stop([], 30)
    assert child.returncode == 0


def test_a_free_port_can_be_listened_on() -> None:
    port = processes.free_port()
    processes.require_port("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError) as caught:
            processes.require_port("127.0.0.1", port)
    expected = f"port {port} on 127.0.0.1 cannot be used (Address already in use): choose another with --port"
    assert str(caught.value) == expected
    processes.require_port("127.0.0.1", port)


@pytest.mark.parametrize(("host", "reason"), [("192.0.2.1", "Cannot assign requested address"), ("no.invalid", "")])
def test_a_host_that_is_not_ours_is_refused(host: str, reason: str) -> None:
    with pytest.raises(InputError, match=rf"port 8000 on {host} cannot be used \(.*{reason}"):
        processes.require_port(host, 8000)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InputError, match=rf"port {port} on 127\.0\.0\.1 cannot be used \(.*0 to 65535"):
        processes.require_port("127.0.0.1", port)


def test_an_ipv6_host_is_checked_as_well() -> None:
    if not socket.has_dualstack_ipv6():
        # Then no port there is ours to bind.
        with pytest.raises(InputError, match="::1 cannot be used"):
            processes.require_port("::1", 8000)
        return
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="Address already in use"):
            processes.require_port("::1", port)
    processes.require_port("::1", port)


def test_our_own_command_is_run_by_this_interpreter(tmp_path: Path) -> None:
    command = processes.twinspeed_command("release", "show", "--release", tmp_path)
    assert command == [sys.executable, "-m", "twinspeed", "release", "show", "--release", os.fspath(tmp_path)]
