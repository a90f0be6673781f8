"""The supervisor with processes that only look like engines."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from serve.command import EngineCommand
from serve.logs import EngineLog
from serve.supervisor import RestartPolicy, Supervisor
from twinspeed import processes
from twinspeed.errors import TwinspeedError

pytestmark = pytest.mark.unit

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
QUICK = RestartPolicy(first_delay_s=0.05, longest_delay_s=0.2, most_failures=3, steady_s=60)


def fake(state: Path, *flags: str, policy: RestartPolicy = QUICK) -> Supervisor:
    port = processes.free_port()
    argv = [sys.executable, str(FAKE_ENGINE), str(port), str(state), *flags]
    command = EngineCommand(argv=argv, env=dict(os.environ), notices=[])
    return Supervisor(command, f"http://127.0.0.1:{port}/health", EngineLog("fast"), policy)


def supervise(supervisor: Supervisor, act: Callable[[], Awaitable[None]]) -> None:
    async def both() -> None:
        running = asyncio.create_task(supervisor.run())
        try:
            await asyncio.wait_for(act(), 30)
        finally:
            supervisor.stop()
            await running

    asyncio.run(both())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does; no event of ours tells of it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def starts(state: Path) -> list[int]:
    file = state / "starts"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def logged(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def messages(records: list[dict[str, object]]) -> list[str]:
    return [str(record["message"]) for record in records]


def test_an_engine_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async def act() -> None:
        await until(lambda: len(starts(tmp_path)) == 1)
        os.kill(starts(tmp_path)[0], signal.SIGKILL)
        await until(lambda: len(starts(tmp_path)) == 2)

    supervise(fake(tmp_path), act)


def test_what_a_killed_engine_leaves_behind_is_killed_before_the_next_start(tmp_path: Path) -> None:
    async def act() -> None:
        await until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text() != "")
        orphan = int((tmp_path / "child").read_text())
        os.kill(starts(tmp_path)[0], signal.SIGKILL)
        await until(lambda: len(starts(tmp_path)) == 2)
        assert not alive(orphan)

    supervise(fake(tmp_path, "--child"), act)


def test_gives_up_after_repeated_failures_with_the_engines_own_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor = fake(tmp_path, "--fail", "ValueError: the KV cache is too small")
    with pytest.raises(TwinspeedError, match=r"3 times in a row.*ValueError: the KV cache is too small"):
        asyncio.run(supervisor.run())
    assert len(starts(tmp_path)) == 3


def test_a_steady_engine_is_forgiven_its_earlier_failures(tmp_path: Path) -> None:
    patient = RestartPolicy(first_delay_s=0.01, longest_delay_s=0.01, most_failures=2, steady_s=0)

    async def act() -> None:
        for count in range(1, 5):
            await until(lambda count=count: len(starts(tmp_path)) == count)
            # Steady means that it has answered /health, which the supervisor asks for every quarter of a second.
            await asyncio.sleep(1.5)
            os.kill(starts(tmp_path)[-1], signal.SIGKILL)
        await until(lambda: len(starts(tmp_path)) == 5)

    supervise(fake(tmp_path, policy=patient), act)


def test_stop_lets_the_engine_drain_and_does_not_start_it_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def act() -> None:
        await until(lambda: len(starts(tmp_path)) == 1)
        await asyncio.sleep(0.3)

    supervise(fake(tmp_path), act)
    assert (tmp_path / "drained").exists()
    assert len(starts(tmp_path)) == 1
    assert "engine ended" in messages(logged(capfd))


def test_a_second_stop_ends_an_engine_that_drains_for_too_long(tmp_path: Path) -> None:
    supervisor = fake(tmp_path, "--slow-stop")

    async def both() -> None:
        running = asyncio.create_task(supervisor.run())
        await until(lambda: len(starts(tmp_path)) == 1)
        await asyncio.sleep(0.3)
        supervisor.stop()
        await until((tmp_path / "drained").exists)
        supervisor.stop()
        await running

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(both(), 20))
    assert time.monotonic() - began < 15
    assert not alive(starts(tmp_path)[0])


def test_stop_during_the_wait_before_a_restart_ends_at_once(tmp_path: Path) -> None:
    slow = RestartPolicy(first_delay_s=60, longest_delay_s=60, most_failures=5)

    async def act() -> None:
        await until(lambda: len(starts(tmp_path)) == 1)
        await asyncio.sleep(0.3)

    began = time.monotonic()
    supervise(fake(tmp_path, "--fail", "boom", policy=slow), act)
    assert time.monotonic() - began < 10


def test_the_log_is_json_lines_that_name_the_variant(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def act() -> None:
        await until(lambda: len(starts(tmp_path)) == 1)
        await asyncio.sleep(1)

    supervise(fake(tmp_path), act)
    records = logged(capfd)
    assert {record["variant"] for record in records} == {"fast"}
    engine = next(record for record in records if record.get("process") == "EngineCore pid=7")
    assert engine["message"] == "init engine took 56.93 s"
    assert engine["source"] == "core.py:402"
    assert "engine ready" in messages(records)


def test_restart_delays_grow_up_to_the_longest() -> None:
    policy = RestartPolicy(first_delay_s=1, longest_delay_s=6)
    assert [policy.delay_s(failures) for failures in (1, 2, 3, 4, 20)] == [1, 2, 4, 6, 6]
