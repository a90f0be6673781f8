import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from twinspeed import checkpoint, paths
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

ChangeJson = Callable[..., None]
WriteSafetensors = Callable[[Path, Mapping[str, int]], None]

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def refusal(folder: Path) -> str:
    """The one line with which the checkpoint is refused."""
    with pytest.raises(InputError) as caught:
        checkpoint.open_checkpoint(folder)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def differences(first: Path, second: Path) -> list[str]:
    return checkpoint.read_identity(first).differences(checkpoint.read_identity(second))


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@pytest.fixture
def sharded(tiny: Path, write_safetensors: WriteSafetensors) -> Path:
    (tiny / "model.safetensors").unlink()
    for shard in SHARDS:
        write_safetensors(tiny / shard, {f"{shard}.weight": 16})
    (tiny / INDEX).write_text(json.dumps({"weight_map": {f"{shard}.weight": shard for shard in SHARDS}}))
    return tiny


@pytest.fixture
def twin(tiny: Path, tmp_path: Path) -> Path:
    """A copy of `tiny`, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "twin"))


def test_a_complete_checkpoint_is_opened_and_described(tiny: Path) -> None:
    opened = checkpoint.open_checkpoint(tiny)
    assert opened.architecture == "LlamaForCausalLM"
    assert opened.weight_bytes == (tiny / "model.safetensors").stat().st_size
    identity = opened.identity
    assert (identity.vocab_size, identity.context_length) == (4, 64)
    assert identity.eos_token_ids == (2, 3)
    assert identity.generation_config == {"eos_token_id": [2, 3], "temperature": 0.7}
    assert identity.chat_template == (tiny / "chat_template.jinja").read_text()
    assert opened.hash_files().keys() == {path.name for path in tiny.iterdir()}


def test_the_shards_of_an_index_are_counted_together(sharded: Path) -> None:
    expected = sum((sharded / shard).stat().st_size for shard in SHARDS)
    assert checkpoint.open_checkpoint(sharded).weight_bytes == expected


def test_the_numbers_of_a_multimodal_model_are_its_text_models(tiny: Path, change_json: ChangeJson) -> None:
    text = json.loads((tiny / "config.json").read_text()) | {"vocab_size": 7, "max_position_embeddings": 9}
    change_json(tiny / "config.json", text_config=text)
    identity = checkpoint.read_identity(tiny)
    assert (identity.vocab_size, identity.context_length) == (7, 9)


def test_eos_comes_from_the_config_where_no_generation_config_names_it(tiny: Path) -> None:
    (tiny / "generation_config.json").unlink()
    assert checkpoint.read_identity(tiny).eos_token_ids == (2,)


def test_a_missing_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert "config.json is missing" in refusal(tmp_path / "absent")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tiny: Path, name: str) -> None:
    (tiny / name).unlink()
    message = refusal(tiny)
    assert str(tiny) in message
    assert f"{name} is missing" in message


def test_a_missing_tokenizer_is_named(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    assert refusal(tiny).startswith(f"{tiny}: no tokenizer (tokenizer.json, ")


def test_every_missing_shard_of_an_index_is_named(sharded: Path) -> None:
    for shard in SHARDS:
        (sharded / shard).unlink()
    assert f"half a checkpoint: {', '.join(SHARDS)} is missing" in refusal(sharded)


@pytest.mark.parametrize("content", [b"{", b"", b"{}}", b"\xff\xfe", b"[1]", b"null"])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", INDEX]
)
def test_a_file_without_a_json_object_is_named(tiny: Path, name: str, content: bytes) -> None:
    (tiny / name).write_bytes(content)
    assert refusal(tiny).startswith(f"{tiny / name} ")


@pytest.mark.parametrize("weight_map", [None, {}, [], "model.safetensors"])
def test_an_index_without_a_weight_map_is_named(sharded: Path, change_json: ChangeJson, weight_map: Any) -> None:
    change_json(sharded / INDEX, weight_map=weight_map)
    assert refusal(sharded).startswith(f"{sharded / INDEX}: `weight_map` ")


def test_a_shard_of_any_shorter_or_greater_length_is_refused(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert refusal(tiny).startswith(f"{path} is cut short or damaged ({size} bytes)")
    path.write_bytes(whole + b"\0")
    assert refusal(tiny).startswith(f"{path} is cut short or damaged")


def test_the_shard_at_fault_is_named(sharded: Path) -> None:
    path = sharded / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(sharded).startswith(f"{path} is cut short")


@pytest.mark.parametrize(
    "content",
    [
        with_header(b"not JSON"),
        with_header(b"[]"),
        with_header(b"\xff\xff"),
        with_header(b'{"w": null}'),
        with_header(b'{"w": {}}'),
        with_header(b'{"w": {"data_offsets": []}}'),
        with_header(b'{"w": {"data_offsets": [0, null]}}'),
        with_header(b'{"w": {"data_offsets": ["0", "4"]}}', b"data"),
        with_header(b'{"v": {"data_offsets": [0, 4]}, "w": {"data_offsets": ["0", "4"]}}', b"data"),
        struct.pack("<Q", 2**64 - 1) + b"{}",
        b"<html>404</html>",
    ],
)
def test_a_shard_with_a_garbage_header_is_named(tiny: Path, content: bytes) -> None:
    (tiny / "model.safetensors").write_bytes(content)
    assert refusal(tiny).startswith(f"{tiny / 'model.safetensors'} is cut short or damaged")


@pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, -1, "4", 4.5, True])
def test_a_config_without_a_usable_number_is_named(tiny: Path, change_json: ChangeJson, key: str, value: Any) -> None:
    change_json(tiny / "config.json", **{key: value})
    expected = f"{tiny / 'config.json'}: `{key}` must be a positive whole number, found {value!r}"
    assert refusal(tiny) == expected


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM"])
def test_a_config_without_an_architecture_is_named(tiny: Path, change_json: ChangeJson, value: Any) -> None:
    change_json(tiny / "config.json", architectures=value)
    assert refusal(tiny).startswith(f"{tiny / 'config.json'}: `architectures` is missing")


def test_a_text_config_that_is_no_object_is_named(tiny: Path, change_json: ChangeJson) -> None:
    change_json(tiny / "config.json", text_config="llama")
    assert refusal(tiny).startswith(f"{tiny / 'config.json'}: `text_config` ")


@pytest.mark.parametrize("eos", ["</s>", [2, "</s>"], 2.5, True, {}])
def test_an_eos_that_is_no_token_id_is_named(tiny: Path, change_json: ChangeJson, eos: Any) -> None:
    change_json(tiny / "generation_config.json", eos_token_id=eos)
    message = refusal(tiny)
    assert message.startswith(f"{tiny}: `eos_token_id` ")
    assert repr(eos) in message


def test_a_chat_template_that_is_no_text_is_named(tiny: Path) -> None:
    (tiny / "chat_template.jinja").write_bytes(b"\xff\xfe")
    assert refusal(tiny).startswith(f"{tiny / 'chat_template.jinja'} ")


def change_tokenizer(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "tokenizer.json", model={"type": "BPE", "vocab": {"b": 0, "a": 1, "</s>": 2}})


def add_tokenizer_file(folder: Path, change_json: ChangeJson) -> None:
    (folder / "merges.txt").write_text("a b\n")


def change_special_token(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "tokenizer_config.json", bos_token="<s>")


def change_added_bos(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "tokenizer_config.json", add_bos_token=True)


def change_template_file(folder: Path, change_json: ChangeJson) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def drop_template_file(folder: Path, change_json: ChangeJson) -> None:
    (folder / "chat_template.jinja").unlink()


def move_other_template_to_tokenizer_config(folder: Path, change_json: ChangeJson) -> None:
    (folder / "chat_template.jinja").unlink()
    change_json(folder / "tokenizer_config.json", chat_template="{{ messages }}")


def change_eos(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "generation_config.json", eos_token_id=2)


def change_sampling(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "generation_config.json", temperature=0.6)


def change_vocab(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "config.json", vocab_size=5)


def change_context(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "config.json", max_position_embeddings=32)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_tokenizer, ["tokenizer (tokenizer.json: "]),
        (add_tokenizer_file, ["tokenizer (merges.txt: None → "]),
        (change_special_token, ["tokenizer_config (bos_token: None → '<s>')"]),
        (change_added_bos, ["tokenizer_config (add_bos_token: None → True)"]),
        (change_template_file, ["chat_template ("]),
        (drop_template_file, ["chat_template ("]),
        (move_other_template_to_tokenizer_config, ["chat_template ("]),
        (change_eos, ["eos_token_ids ((2, 3) → (2,))", "generation_config (eos_token_id: [2, 3] → 2)"]),
        (change_sampling, ["generation_config (temperature: 0.7 → 0.6)"]),
        (change_vocab, ["vocab_size (4 → 5)"]),
        (change_context, ["context_length (64 → 32)"]),
    ],
)
def test_what_differs_is_named_with_both_values(
    tiny: Path,
    twin: Path,
    change_json: ChangeJson,
    change: Callable[[Path, ChangeJson], None],
    expected: list[str],
) -> None:
    change(twin, change_json)
    found = differences(tiny, twin)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found


def test_long_values_are_cut(tiny: Path, twin: Path) -> None:
    (twin / "chat_template.jinja").write_text("x" * 1000)
    [found] = differences(tiny, twin)
    assert len(found) < 110


def rewrite_json(folder: Path, change_json: ChangeJson) -> None:
    for path in folder.glob("*.json"):
        backwards = dict(reversed(json.loads(path.read_text()).items()))
        path.write_text(json.dumps(backwards, separators=(",", ":")))


def write_special_token_with_its_flags(folder: Path, change_json: ChangeJson) -> None:
    token = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "special": True}
    change_json(folder / "tokenizer_config.json", eos_token=token)


def name_other_classes(folder: Path, change_json: ChangeJson) -> None:
    change_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", model_max_length=10**30)
    change_json(folder / "generation_config.json", transformers_version="5.1.0")


def move_template_to_tokenizer_config(folder: Path, change_json: ChangeJson) -> None:
    template = folder / "chat_template.jinja"
    change_json(folder / "tokenizer_config.json", chat_template=template.read_text())
    template.unlink()


def change_weights(folder: Path, change_json: ChangeJson) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    change_json(folder / "config.json", quantization_config={"quant_method": "compressed-tensors"})


@pytest.mark.parametrize(
    "change",
    [
        rewrite_json,
        write_special_token_with_its_flags,
        name_other_classes,
        move_template_to_tokenizer_config,
        change_weights,
    ],
)
def test_what_no_client_can_tell_is_no_difference(
    tiny: Path, twin: Path, change_json: ChangeJson, change: Callable[[Path, ChangeJson], None]
) -> None:
    change(twin, change_json)
    assert differences(tiny, twin) == []


def test_a_checkpoint_is_located_by_folder_or_by_the_name_it_was_fetched_under(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny.parent)
    assert checkpoint.locate("tiny") == Path("tiny")
    assert checkpoint.locate(str(tiny)) == tiny
    fetched = paths.checkpoints() / "smollm2"
    fetched.mkdir(parents=True)
    assert checkpoint.locate("smollm2") == fetched


@pytest.mark.parametrize("reference", ["nothing", "/no/such/folder", "../checkpoints/smollm2"])
def test_a_reference_to_nothing_is_refused(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"no checkpoint at {reference}: give a Hugging Face model folder"):
        checkpoint.locate(reference)
