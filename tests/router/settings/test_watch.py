"""New settings are taken over whole or not at all, one at a time."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from router.config import RouterConfig
from router.settings import ConfigWatcher, load

pytestmark = pytest.mark.unit

POLL = 0.02


def text(port: int = 8001, *, name: str = "acme/m", rest: str = "") -> str:
    return (
        f"auth: off\nmodels:\n  - {{name: {name}, variants: {{standard: {{replicas: ['http://h:{port}']}}}}}}\n{rest}"
    )


class Applied:
    """What was applied, as the router would; `refuse` and `gate` let a test stand in its way."""

    def __init__(self) -> None:
        self.configs: list[RouterConfig] = []
        self.running = 0
        self.most = 0
        self.refuse: str | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, config: RouterConfig) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.configs.append(config)
        await self.gate.wait()
        self.running -= 1
        if self.refuse is not None:
            raise RuntimeError(self.refuse)

    @property
    def urls(self) -> list[str]:
        return [config.models[0].variants["standard"].replicas[0] for config in self.configs]


@asynccontextmanager
async def watching(file: Path, applied: Applied, poll: float = POLL) -> AsyncIterator[ConfigWatcher]:
    watcher = ConfigWatcher(file, {}, load(file, {}), applied, poll_interval=poll)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for sets no event)
            await asyncio.sleep(0.002)


def replace(file: Path, content: str | None) -> None:
    """In one step, as `mv` does; None removes it."""
    if content is None:
        return file.unlink()
    fresh = file.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(file)
    return None


def overwrite_unseen(file: Path, content: str) -> None:
    """In place, leaving the time and the size as they were."""
    before = file.stat()
    file.write_text(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


def write_slowly(file: Path, content: str, seconds: float) -> None:
    """As an editor with a slow disk: each moment shows another invalid part of it, and the last all of it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        file.write_text(f"{content[: len(content) // 2]}\n[{time.monotonic_ns()}")
        time.sleep(0.002)
    file.write_text(content)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "router.yaml"
    path.write_text(text())
    return path


def test_a_changed_file_is_applied_once(file: Path) -> None:
    async def scenario() -> None:
        applied = Applied()
        async with watching(file, applied) as watcher:
            before = watcher.loaded_at
            replace(file, text(8002))
            await until(lambda: watcher.generation == 2)
            assert watcher.config == applied.configs[0] == load(file, {})
            assert watcher.loaded_at >= before
            await asyncio.sleep(5 * POLL)
        assert applied.urls == ["http://h:8002"]

    asyncio.run(scenario())


def test_a_file_that_changed_before_the_watch_began_is_applied(file: Path) -> None:
    async def scenario() -> None:
        applied = Applied()
        watcher = ConfigWatcher(file, {}, load(file, {}), applied, poll_interval=POLL)
        replace(file, text(8002))
        task = asyncio.create_task(watcher.run())
        await until(lambda: watcher.generation == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_a_change_of_comments_alone_is_not_applied(file: Path) -> None:
    async def scenario() -> None:
        applied = Applied()
        async with watching(file, applied):
            replace(file, text() + "# more\n")
            await asyncio.sleep(5 * POLL)
            replace(file, text(8002))
            await until(lambda: bool(applied.configs))
        assert applied.urls == ["http://h:8002"]

    asyncio.run(scenario())


def test_a_content_of_the_same_size_and_time_is_noticed(file: Path) -> None:
    async def scenario() -> None:
        applied = Applied()
        async with watching(file, applied) as watcher:
            overwrite_unseen(file, text(8002))
            await until(lambda: watcher.generation == 2)

    asyncio.run(scenario())


def test_a_file_that_is_being_written_is_waited_for(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        applied = Applied()
        async with watching(file, applied, poll=0.2) as watcher:
            await asyncio.to_thread(write_slowly, file, text(8002), 1.0)
            await until(lambda: watcher.generation == 2)
        assert applied.urls == ["http://h:8002"]

    asyncio.run(scenario())
    assert not caplog.records


def test_the_swapped_link_of_a_config_map_is_noticed(tmp_path: Path) -> None:
    """As the kubelet does: router.yaml -> ..data/router.yaml, and ..data -> a folder, replaced by rename."""
    for name, port in (("..1", 8001), ("..2", 8002)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "router.yaml").write_text(text(port))
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "router.yaml"
    file.symlink_to("..data/router.yaml")

    async def scenario() -> None:
        applied = Applied()
        async with watching(file, applied) as watcher:
            await asyncio.sleep(3 * POLL)
            (tmp_path / "..data_tmp").symlink_to("..2")
            (tmp_path / "..data_tmp").replace(tmp_path / "..data")
            (tmp_path / "..1" / "router.yaml").unlink()
            await until(lambda: watcher.generation == 2)
        assert applied.urls == ["http://h:8002"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (text(8002, rest="speed: 3\n"), "router.yaml:4: speed: there is no such field, only "),
        (None, "router.yaml: No such file or directory"),
        (text(8002, rest="listen: {port: 1}\n"), "router.yaml: listen.port: cannot change while the router runs"),
        (text(8002, rest="listen: {host: '::'}\n"), "router.yaml: listen.host: cannot change while the router runs"),
        (text(8002, rest="listen: {workers: 2}\n"), "router.yaml: listen.workers: cannot change while the router runs"),
        (text(8002, rest="state: {url: 'redis://:hunter2@h/0'}\n"), "router.yaml: state.url: cannot change"),
        (text(8002, rest="state: {folder: /x}\n"), "router.yaml: state.folder: cannot change while the router runs"),
        (
            text(8002, rest=f"admin: {{port: 1, key_sha256: {'a' * 64}}}\n"),
            "router.yaml: admin.port: cannot change while the router runs",
        ),
    ],
)
def test_what_cannot_be_taken_leaves_the_old_in_force(
    file: Path, caplog: pytest.LogCaptureFixture, content: str | None, reason: str
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        applied = Applied()
        async with watching(file, applied) as watcher:
            old = watcher.config
            replace(file, content)
            await until(lambda: watcher.last_error is not None)
            assert watcher.last_error is not None
            assert reason in watcher.last_error
            assert "hunter2" not in watcher.last_error
            await asyncio.sleep(5 * POLL)
            assert (watcher.config, watcher.generation, applied.configs) == (old, 1, [])
            [record] = caplog.records
            assert record.levelno == logging.ERROR
            assert record.getMessage().startswith("settings of generation 1 stay in force: ")
            assert reason in record.getMessage()
            assert "\n" not in record.getMessage()

            replace(file, text())
            await until(lambda: watcher.last_error is None)
            assert (watcher.generation, applied.configs) == (1, [])
            replace(file, text(8003))
            await until(lambda: watcher.generation == 2)

    asyncio.run(scenario())


def test_a_key_of_the_admin_api_may_change(file: Path) -> None:
    async def scenario() -> None:
        replace(file, text(rest=f"admin: {{port: 1, key_sha256: {'a' * 64}}}\n"))
        async with watching(file, Applied()) as watcher:
            replace(file, text(rest=f"admin: {{port: 1, key_sha256: {'b' * 64}}}\n"))
            await until(lambda: watcher.generation == 2)
            replace(file, text())
            await until(lambda: watcher.last_error is not None)

    asyncio.run(scenario())


def test_what_apply_refuses_leaves_the_old_in_force(file: Path) -> None:
    async def scenario() -> None:
        applied = Applied()
        applied.refuse = "no such release"
        async with watching(file, applied) as watcher:
            old = watcher.config
            replace(file, text(8002))
            await until(lambda: watcher.last_error is not None)
            assert watcher.last_error == f"{file}: could not be applied: no such release"
            assert (watcher.config, watcher.generation) == (old, 1)
            applied.refuse = None
            watcher.trigger()
            await until(lambda: watcher.generation == 2)
            assert watcher.last_error is None

    asyncio.run(scenario())


def test_sighup_applies_the_file_at_once_changed_or_not(file: Path) -> None:
    async def scenario() -> None:
        applied = Applied()
        async with watching(file, applied, poll=3600) as watcher:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, watcher.trigger)
            try:
                os.kill(os.getpid(), signal.SIGHUP)
                await until(lambda: watcher.generation == 2)
                replace(file, text(8002))
                os.kill(os.getpid(), signal.SIGHUP)
                await until(lambda: watcher.generation == 3)
            finally:
                loop.remove_signal_handler(signal.SIGHUP)
        assert applied.urls == ["http://h:8001", "http://h:8002"]

    asyncio.run(scenario())


def test_what_sighup_found_wrong_is_not_found_wrong_again_by_the_watch(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with watching(file, Applied(), poll=0.2) as watcher:
            await asyncio.sleep(0.5)
            replace(file, text(rest="speed: 3\n"))
            watcher.trigger()
            await until(lambda: watcher.last_error is not None)
            await asyncio.sleep(0.7)

    asyncio.run(scenario())
    assert len(caplog.records) == 1


def test_triggers_during_an_apply_lead_to_one_more(file: Path) -> None:
    async def scenario() -> None:
        applied = Applied()
        applied.gate.clear()
        async with watching(file, applied) as watcher:
            watcher.trigger()
            await until(lambda: applied.running == 1)
            replace(file, text(8002))
            for _ in range(5):
                watcher.trigger()
                await asyncio.sleep(POLL)
            assert len(applied.configs) == 1
            applied.gate.set()
            await until(lambda: watcher.generation == 3)
            await asyncio.sleep(5 * POLL)
        assert applied.urls == ["http://h:8001", "http://h:8002"]
        assert applied.most == 1

    asyncio.run(scenario())
