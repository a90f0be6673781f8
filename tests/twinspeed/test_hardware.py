import os
from pathlib import Path

import pytest

from twinspeed import hardware
from twinspeed.hardware import Gpu, Hardware

pytestmark = pytest.mark.unit

SAPPHIRE_RAPIDS = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R)   Platinum 8481C CPU @ 2.70GHz
flags\t\t: fpu sse4_2 avx avx2 avx512f avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd bf16 i8mm\n"


def machine(*gpus: Gpu, instruction_sets: tuple[str, ...] = ("avx512_vnni", "avx2")) -> Hardware:
    return Hardware("Intel(R) Xeon(R) Processor", 2, 23_900_000 * 1024, instruction_sets, gpus)


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_cpuinfo_gives_the_first_processors_name_and_its_instruction_sets_strongest_first() -> None:
    assert hardware.parse_cpu_name(SAPPHIRE_RAPIDS) == "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"
    assert hardware.parse_instruction_sets(SAPPHIRE_RAPIDS) == (
        "amx_tile",
        "avx512_bf16",
        "avx512_vnni",
        "avx2",
    )


def test_an_arm_cpuinfo_names_no_processor_and_no_x86_instruction_set() -> None:
    assert hardware.parse_cpu_name(ARM) is None
    assert hardware.parse_instruction_sets(ARM) == ()


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("", ()),
        ("NVIDIA H200, 143771 MiB\n", (Gpu("NVIDIA H200", 143771 * 2**20),)),
        ("A, B, 16 MiB\nTesla T4, 15360 MiB\n", (Gpu("A, B", 16 * 2**20), Gpu("Tesla T4", 15360 * 2**20))),
        ("NVIDIA GB10, [N/A]\n", (Gpu("NVIDIA GB10", None),)),
    ],
)
def test_gpus_are_read_from_nvidia_smi(listing: str, expected: tuple[Gpu, ...]) -> None:
    assert hardware.parse_gpus(listing) == expected


def test_the_lowest_memory_limit_on_the_way_up_the_cgroup_tree_binds(tmp_path: Path) -> None:
    for folder, limit in {"pod": "2147483648", "pod/container": "max", "other": "1"}.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(limit + "\n")
    assert hardware.cgroup_memory_limit("0::/pod/container\n", tmp_path) == 2 * 2**30


def test_a_container_reads_its_limit_at_the_root_it_sees(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("536870912\n")
    assert hardware.cgroup_memory_limit("0::/\n", tmp_path) == 512 * 2**20


@pytest.mark.parametrize("membership", ["0::/\n", "4:memory:/docker/1\n1:cpu:/\n", ""])
def test_without_a_cgroup_v2_limit_nothing_limits_memory(membership: str, tmp_path: Path) -> None:
    assert hardware.cgroup_memory_limit(membership, tmp_path) is None


def test_a_report_names_the_strongest_instruction_set_and_the_memory() -> None:
    assert machine().describe() == "2-core Intel(R) Xeon(R) Processor (avx512_vnni), 23 GiB"
    assert machine(instruction_sets=()).describe() == "2-core Intel(R) Xeon(R) Processor, 23 GiB"


def test_a_report_counts_equal_gpus_together() -> None:
    h200, gb10 = Gpu("NVIDIA H200", 143771 * 2**20), Gpu("NVIDIA GB10", None)
    assert machine(h200, h200, gb10).describe() == (
        "2x NVIDIA H200 (140 GiB), 1x NVIDIA GB10, 2-core Intel(R) Xeon(R) Processor (avx512_vnni), 23 GiB"
    )


def test_only_a_cpu_machine_has_a_default_price() -> None:
    assert machine().usd_per_hour == pytest.approx(0.10)
    assert machine(Gpu("NVIDIA H200", None)).usd_per_hour is None


def test_detection_sees_only_the_cores_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert hardware.detect().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_machine_whose_nvidia_smi_answers_is_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA L4, 23034 MiB'")
    found = hardware.detect()
    assert found.kind == "cuda"
    assert found.gpus == (Gpu("NVIDIA L4", 23034 * 2**20),)


@pytest.mark.parametrize("script", ["echo 'Driver mismatch, 18 MiB'; exit 9", "exit 9"])
def test_a_machine_whose_nvidia_smi_fails_is_cpu(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, script)
    assert hardware.detect().kind == "cpu"


def test_a_machine_without_nvidia_smi_is_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = hardware.detect()
    assert found.kind == "cpu"
    assert found.gpus == ()
    assert found.memory_bytes > 0
