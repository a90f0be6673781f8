"""The machine Twinspeed runs on: what figures are reported for, and which lock an environment takes."""

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["cpu", "cuda"]

# An assumption, not a quote: about what clouds ask on demand for a vCPU of a general-purpose machine.
USD_PER_VCPU_HOUR = 0.05

# Strongest first: the first one present says which kernels the engine can take.
INSTRUCTION_SETS = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx2")

_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
# Initialising the driver of a machine with many idle GPUs takes several seconds.
_NVIDIA_SMI_TIMEOUT_S = 60


@dataclass(frozen=True)
class Gpu:
    """One GPU; `memory_bytes` is None where it shares the machine's memory and the driver names no size."""

    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class Hardware:
    """What this process may use: `cores` are logical ones, `instruction_sets` those of INSTRUCTION_SETS."""

    cpu: str
    cores: int
    memory_bytes: int
    instruction_sets: tuple[str, ...]
    gpus: tuple[Gpu, ...]

    @property
    def kind(self) -> Kind:
        return "cuda" if self.gpus else "cpu"

    @property
    def usd_per_hour(self) -> float | None:
        """The default price of the machine; None with GPUs, whose price only the user knows."""
        return None if self.gpus else self.cores * USD_PER_VCPU_HOUR

    def describe(self) -> str:
        """One line for reports: `2-core Intel(R) Xeon(R) Processor (avx512_vnni), 24 GiB`."""
        strongest = f" ({self.instruction_sets[0]})" if self.instruction_sets else ""
        machine = f"{self.cores}-core {self.cpu}{strongest}, {_gib(self.memory_bytes)}"
        return ", ".join([*_describe_gpus(self.gpus), machine])


def detect() -> Hardware:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    limit = cgroup_memory_limit(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Hardware(
        cpu=parse_cpu_name(cpuinfo) or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=installed if limit is None else min(installed, limit),
        instruction_sets=parse_instruction_sets(cpuinfo),
        gpus=parse_gpus(_query_gpus()),
    )


def parse_cpu_name(cpuinfo: str) -> str | None:
    """The first processor's name in `/proc/cpuinfo`; None on Arm, which gives none."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(match[1].split()) if match else None


def parse_instruction_sets(cpuinfo: str) -> tuple[str, ...]:
    """Those of INSTRUCTION_SETS that the first processor in `/proc/cpuinfo` has, strongest first."""
    match = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return tuple(name for name in INSTRUCTION_SETS if name in flags)


def cgroup_memory_limit(membership: str, root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The lowest `memory.max` (bytes) from the process's cgroup v2 up to `root`; None if nothing limits it.

    `membership` is the text of `/proc/self/cgroup`. Each ancestor's limit binds as well.
    """
    match = re.search(r"^0::/(.*)$", membership, re.MULTILINE)
    if match is None:
        return None
    group = root / match[1]
    limits = [_read_limit(folder / "memory.max") for folder in (group, *group.parents) if _within(folder, root)]
    return min((limit for limit in limits if limit is not None), default=None)


def parse_gpus(listing: str) -> tuple[Gpu, ...]:
    """GPUs from nvidia-smi's `name, memory.total` rows."""
    rows = (line.rpartition(",") for line in listing.splitlines() if "," in line)
    return tuple(Gpu(name.strip(), _parse_mib(memory)) for name, _, memory in rows)


def _query_gpus() -> str:
    """nvidia-smi's answer; empty where it is missing or fails, since CUDA would fail there too."""
    try:
        answer = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, check=True, timeout=_NVIDIA_SMI_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout


def _parse_mib(text: str) -> int | None:
    match = re.fullmatch(r"\s*(\d+) MiB\s*", text)
    return int(match[1]) * 2**20 if match else None


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _within(folder: Path, root: Path) -> bool:
    return folder == root or root in folder.parents


def _describe_gpus(gpus: tuple[Gpu, ...]) -> list[str]:
    """Equal GPUs counted together, in order of first appearance."""
    return [
        f"{gpus.count(gpu)}x {gpu.name}" + (f" ({_gib(gpu.memory_bytes)})" if gpu.memory_bytes else "")
        for gpu in dict.fromkeys(gpus)
    ]


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
