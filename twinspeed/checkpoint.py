"""A checkpoint: a Hugging Face model folder, opened, hashed and described without loading the model."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinspeed import files, paths
from twinspeed.errors import InputError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
)

# Keys of tokenizer_config.json that change which token ids a text becomes. The rest (class names, library
# versions, length hints) differ between savers without changing a single id.
_TOKENIZER_CONFIG_KEYS = (
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
)


@dataclass(frozen=True)
class Identity:
    """What a variant must share with its parent to be the same model to a client."""

    tokenizer: dict[str, str]
    tokenizer_config: dict[str, Any]
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    generation_config: dict[str, Any]
    vocab_size: int
    context_length: int

    def differences(self, other: "Identity") -> list[str]:
        """Names of what differs, each with both values where they are short; empty when equal."""
        found = []
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(_difference(name, mine, theirs))
        return found


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint folder: complete as far as can be told without loading it."""

    path: Path
    config: dict[str, Any]
    identity: Identity
    weight_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.config["architectures"][0])

    def hash_files(self) -> dict[str, str]:
        """SHA-256 of every file below the folder, by relative name."""
        return {name: files.sha256_cached(self.path / name) for name in files.relative_files(self.path)}


def locate(reference: str) -> Path:
    """The folder that a user means by `reference`: a local folder, or the name of a fetched checkpoint."""
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return folder
    fetched = paths.checkpoints() / reference
    if "/" not in reference and fetched.is_dir():
        return fetched
    raise InputError(
        f"no checkpoint at {reference}: give a Hugging Face model folder, or the name of a checkpoint fetched with "
        "`twinspeed checkpoint fetch`"
    )


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read and check a checkpoint folder.

    Raises:
        InputError: a file is missing, cut short or unreadable; says which and what to do.
    """
    config = _read_json(folder, "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(f"{folder / 'config.json'}: `architectures` is missing, so no engine can load it")
    return Checkpoint(
        path=folder,
        config=config,
        identity=read_identity(folder),
        weight_bytes=sum(_check_shard(folder / name) for name in _shards(folder)),
    )


def read_identity(folder: Path) -> Identity:
    """Tokenizer, chat template, EOS and generation config of a checkpoint folder, in comparable form."""
    config = _read_json(folder, "config.json")
    text_config = config.get("text_config", config)
    if not isinstance(text_config, dict):
        raise InputError(f"{folder / 'config.json'}: `text_config` must be an object, found {text_config!r}")
    tokenizer = {name: _canonical_sha256(folder / name) for name in TOKENIZER_FILES if (folder / name).is_file()}
    if not tokenizer:
        raise InputError(f"{folder}: no tokenizer ({', '.join(TOKENIZER_FILES[:3])} …); save it beside the weights")
    tokenizer_config = _read_json(folder, "tokenizer_config.json", required=False)
    generation = _read_json(folder, "generation_config.json", required=False)
    generation.pop("transformers_version", None)
    eos = generation.get("eos_token_id", text_config.get("eos_token_id"))
    return Identity(
        tokenizer=tokenizer,
        tokenizer_config={key: _token_text(tokenizer_config.get(key)) for key in _TOKENIZER_CONFIG_KEYS},
        chat_template=_chat_template(folder, tokenizer_config),
        eos_token_ids=_token_ids(folder, eos),
        generation_config=generation,
        vocab_size=_positive(folder, text_config, "vocab_size"),
        context_length=_positive(folder, text_config, "max_position_embeddings"),
    )


def _read_json(folder: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        if required:
            raise InputError(f"{folder} is not a checkpoint: {name} is missing")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}): fetch or save the checkpoint again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no JSON object: fetch or save the checkpoint again")
    return value


def _shards(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(folder, index.name).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError(f"{index}: `weight_map` is missing or empty: fetch or save the checkpoint again")
        names = sorted({str(name) for name in weight_map.values()})
    else:
        names = ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} is half a checkpoint: {', '.join(missing)} is missing; fetch or save it again")
    return names


def _check_shard(path: Path) -> int:
    """Size of a safetensors file, after checking that it is as long as its header says.

    The format: 8 bytes little-endian header length, JSON header, then tensor data whose last offset ends the file.
    """
    size = path.stat().st_size
    cut_short = InputError(f"{path} is cut short or damaged ({size} bytes): fetch or save the checkpoint again")
    with path.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise cut_short
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > size - 8:
            raise cut_short
        try:
            header = json.loads(stream.read(header_bytes))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            expected = 8 + header_bytes + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise cut_short from None
    if size != expected:
        raise cut_short
    return size


def _canonical_sha256(path: Path) -> str:
    """Hash of a tokenizer file; JSON is compared by value, since savers differ in spacing and key order."""
    if path.suffix == ".json":
        return files.tree_sha256({path.name: json.dumps(_read_json(path.parent, path.name), sort_keys=True)})
    return files.sha256_file(path)


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        try:
            return separate.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{separate} is not UTF-8 text ({error}): fetch or save the checkpoint again") from None
    template = tokenizer_config.get("chat_template")
    return template if isinstance(template, str) or template is None else json.dumps(template, sort_keys=True)


def _token_text(token: Any) -> Any:
    """A special token as its text: some savers write it as a string, some as a dict with flags."""
    return token.get("content") if isinstance(token, dict) else token


def _token_ids(folder: Path, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise InputError(f"{folder}: `eos_token_id` must be a token id or a list of them, found {value!r}")
    return tuple(sorted(ids))


def _positive(folder: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value <= 0:
        raise InputError(f"{folder / 'config.json'}: `{key}` must be a positive whole number, found {value!r}")
    return value


def _difference(name: str, mine: Any, theirs: Any) -> str:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        return f"{name} ({', '.join(f'{key}: {_short(mine.get(key))} → {_short(theirs.get(key))}' for key in keys)})"
    return f"{name} ({_short(mine)} → {_short(theirs)})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
