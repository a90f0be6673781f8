"""The command line and environment of one vLLM server, from a release's manifest and the hardware alone."""

import ctypes.util
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twinspeed import environments, paths
from twinspeed.environments import Environment
from twinspeed.hardware import Hardware
from twinspeed.release import EngineSettings, Release, Variant

DRAIN_S = 30
"""Seconds that requests under way have to finish once an engine is told to stop."""

# An engine runs its longest step once before it serves. On a CPU, vLLM's default of 2,048 tokens and more takes a
# minute of bf16; longer steps bring a CPU nothing, and hold up everyone else's next token.
_CPU_STEP_TOKENS = 512

_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class EngineCommand:
    """How to start an engine, and what the person should know about how it will run."""

    argv: list[str]
    env: dict[str, str]
    notices: list[str]


def engine_command(
    release: Release,
    folder: Path,
    variant_name: str,
    *,
    host: str,
    port: int,
    hardware: Hardware,
    environment: Environment,
    cpus: str | None = None,
) -> EngineCommand:
    """How to serve `variant_name` of the release in `folder` on `host:port`.

    The engine serves under the model name `RELEASE:VARIANT`, so that its answers say which variant they came from.
    `cpus`, such as `0-7`, are those its compute threads are bound to where it runs on a CPU; by default vLLM chooses.
    """
    variant = release.variant(variant_name)
    settings = variant.engine
    notices: list[str] = []
    options: dict[str, str | int | float | bool] = {
        "host": host,
        "port": port,
        "served-model-name": f"{release.name}:{variant_name}",
        "max-model-len": settings.max_model_len,
        "max-num-seqs": settings.max_num_seqs,
        "kv-cache-dtype": settings.kv_cache_dtype,
        "shutdown-timeout": DRAIN_S,
    }
    if variant.speculation is not None:
        options["speculative-config"] = variant.speculation.model_dump_json()
    env = {**_inherited(os.environ), **_QUIET, "VLLM_CACHE_ROOT": str(paths.engine_cache())}
    env["PYTHONPATH"] = str(environments.project_path())
    if environment.hardware == "cpu":
        env |= _cpu_env(hardware, environment, notices)
        if cpus is not None:
            env["VLLM_CPU_OMP_THREADS_BIND"] = cpus
        options["max-num-batched-tokens"] = max(_CPU_STEP_TOKENS, _widest_decode(variant))
        if not settings.args.get("enforce_eager") and not _can_compile(environment):
            options["enforce-eager"] = True
            notices.append(
                "no C++ compiler with Python headers: the engine runs uncompiled, about half as fast; "
                "Debian's packages g++ and python3-dev bring them"
            )
    else:
        options |= _parallel(settings)
    options |= {name.replace("_", "-"): value for name, value in settings.args.items()}
    argv = [
        str(environment.python),
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(folder / variant.weights.path),
    ]
    for name, value in options.items():
        argv += _flag(name, value)
    return EngineCommand(argv=argv, env=env | settings.env, notices=notices)


def _widest_decode(variant: Variant) -> int:
    """Tokens of a step in which every sequence decodes, its drafts included; a step may not be shorter."""
    drafts = variant.speculation.num_speculative_tokens if variant.speculation else 0
    return variant.engine.max_num_seqs * (1 + drafts)


def _flag(name: str, value: str | int | float | bool) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _parallel(settings: EngineSettings) -> dict[str, str | int | float | bool]:
    return {
        "tensor-parallel-size": settings.parallel.tensor,
        "pipeline-parallel-size": settings.parallel.pipeline,
        "data-parallel-size": settings.parallel.data,
    }


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what would lead the engine's Python to another environment's packages."""
    return {key: value for key, value in environ.items() if key not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}


def _cpu_env(hardware: Hardware, environment: Environment, notices: list[str]) -> dict[str, str]:
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    if tcmalloc is None:
        notices.append(
            "libtcmalloc_minimal is not installed: the engine runs slower under load; "
            "Debian's package libtcmalloc-minimal4 brings it"
        )
    libiomp5 = environment.path / "lib" / "libiomp5.so"
    preload = [name for name in (tcmalloc, str(libiomp5) if libiomp5.is_file() else None) if name]
    gibibytes = hardware.memory_bytes // 2**30
    return {
        "LD_PRELOAD": ":".join(preload),
        # On CPU, vLLM leaves caching to torch's inductor, whose default folder is below /tmp. With both lines a second
        # start compiles in 17 s instead of 86 s; with vLLM's own AOT cache it compiles anew at every start (0.32).
        "TORCHINDUCTOR_CACHE_DIR": str(paths.engine_cache() / "inductor"),
        "VLLM_USE_AOT_COMPILE": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, gibibytes // 12)),
    }


def _can_compile(environment: Environment) -> bool:
    """Whether torch's inductor could build its kernels: a C++ compiler, and the headers of the engine's Python."""
    includes = subprocess.run(
        [
            environment.python,
            "-c",
            "import sysconfig, json; print(json.dumps(sysconfig.get_paths()['include']))",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    compiler = os.environ.get("CXX", "g++")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "probe.cpp"
        source.write_text("#include <Python.h>\nint main() { return 0; }\n")
        try:
            probe = subprocess.run(
                [compiler, "-fsyntax-only", f"-I{json.loads(includes)}", source],
                capture_output=True,
                check=False,
            )
        except OSError:
            return False
    return probe.returncode == 0
