"""What tests of every package share: a clean environment, and folders that look like what the stages hand over."""

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from twinspeed import checkpoint, environments, files, release as releases
from twinspeed.environments import Environment
from twinspeed.release import Capabilities, EngineSettings, NgramSpeculation, Release, Variant, Weights

_SETTINGS = ("TWINSPEED_HOME", "KEEP")
_SETTING_PREFIXES = ("HF_", "VLLM_")

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "vocab_size": 4,
}
GENERATION_CONFIG: dict[str, Any] = {"eos_token_id": [2, 3], "temperature": 0.7, "transformers_version": "5.0.0"}
TOKENIZER: dict[str, Any] = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}}}
TOKENIZER_CONFIG: dict[str, Any] = {"bos_token": None, "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}</s>{% endfor %}"


@pytest.fixture(autouse=True)
def clean_environment(request: pytest.FixtureRequest) -> None:
    """A unit test sees none of the caller's settings; one that drives real engines needs them."""
    if request.node.get_closest_marker("unit") is None:
        return
    monkeypatch = request.getfixturevalue("monkeypatch")
    for name in [name for name in os.environ if name in _SETTINGS or name.startswith(_SETTING_PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TWINSPEED_HOME", str(request.getfixturevalue("tmp_path") / "home"))


def _write_safetensors(path: Path, tensors: Mapping[str, int]) -> None:
    """A safetensors file of 8-bit tensors, by name and size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "I8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(end))


def _change_json(path: Path, *, without: str | None = None, **changes: Any) -> None:
    value = json.loads(path.read_text())
    value.update(changes)
    value.pop(without, None)
    path.write_text(json.dumps(value, indent=2))


def _snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, by relative path: the bytes of files, and None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def write_safetensors() -> Callable[[Path, Mapping[str, int]], None]:
    return _write_safetensors


@pytest.fixture
def change_json() -> Callable[..., None]:
    """Sets keys of the object in a JSON file, or drops the one named by `without`."""
    return _change_json


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes | None]]:
    return _snapshot


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The folder of a complete checkpoint whose weights mean nothing."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    contents = {
        "config.json": CONFIG,
        "generation_config.json": GENERATION_CONFIG,
        "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": TOKENIZER_CONFIG,
    }
    for name, value in contents.items():
        (folder / name).write_text(json.dumps(value, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": 32, "model.norm.weight": 8})
    return folder


@pytest.fixture
def tiny_release(tiny: Path, tmp_path: Path) -> Path:
    """The folder of a release of `tiny`, whose variants hold the same bytes."""
    folder = tmp_path / "release"
    opened = checkpoint.open_checkpoint(tiny)
    hashes = opened.hash_files()

    def variant(name: str, number_format: str, speculation: NgramSpeculation | None) -> Variant:
        path = f"variants/{name}"
        shutil.copytree(tiny, folder / path)
        described = {"path": path, "format": number_format, "recipe": "copy", "bytes": opened.weight_bytes}
        return Variant(
            weights=Weights.model_validate({**described, "files": hashes}),
            speculation=speculation,
            lossless_to=None,
            engine=EngineSettings(max_model_len=64, args={"enforce_eager": True}, env={"OMP_NUM_THREADS": "1"}),
            capabilities=Capabilities(context=64),
        )

    ngram = NgramSpeculation(num_speculative_tokens=4, prompt_lookup_min=2, prompt_lookup_max=3)
    releases.save(
        Release(
            name="tiny",
            created_at=datetime(2026, 1, 2, tzinfo=UTC),
            tools={"twinspeed": "0.1.0"},
            parent=releases.parent_of(opened, files.tree_sha256(hashes)),
            variants={"standard": variant("standard", "bf16", None), "fast": variant("fast", "w8a8_int8", ngram)},
        ),
        folder,
    )
    return folder


@pytest.fixture
def optimize() -> Environment:
    """The optimize environment, as if it had been created; it holds this Python and no package at all."""
    environment = environments.resolve("optimize")
    environment.python.parent.mkdir(parents=True)
    python = Path(sys.executable).resolve()
    environment.python.symlink_to(python)
    (environment.path / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    (environment.path / ".complete").touch()
    return environment
