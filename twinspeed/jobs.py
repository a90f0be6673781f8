"""A stage's heavy work, run as a module of this project inside one of the heavy environments."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from twinspeed import environments, processes
from twinspeed.environments import Environment
from twinspeed.errors import InputError, TwinspeedError


def require(environment: Environment) -> None:
    """Refuse before work starts when the environment has not been created.

    Raises:
        InputError: says how to create it.
    """
    if not environment.ready:
        raise InputError(
            f"there is no {environment.name} environment yet: make it with `twinspeed env create {environment.name}`"
        )


def run_module(environment: Environment, module: str, arguments: Sequence[str | Path], log: Path) -> None:
    """Run `python -m module` in the environment; its output goes to the file `log`.

    Raises:
        InputError: the environment has not been created.
        TwinspeedError: the module failed; holds its last line and the log's path.
    """
    require(environment)
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        "PYTHONPATH": str(environments.project_path()),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with log.open("wb") as output:
        child = processes.start(
            [environment.python, "-m", module, *arguments], env=env, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            exit_code = child.wait()
        finally:
            processes.kill_group(child)
    if exit_code != 0:
        lines = log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise TwinspeedError(f"{module} failed: {lines[-1].strip()} (full log: {log})")
