import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quant import build
from quant.build import build_release, parse_engine_args
from twinspeed import checkpoint, files, jobs, release as releases
from twinspeed.environments import Environment
from twinspeed.errors import InputError, TwinspeedError

pytestmark = pytest.mark.unit

ChangeJson = Callable[..., None]
Snapshot = Callable[[Path], dict[str, bytes | None]]
WriteSafetensors = Callable[[Path, Mapping[str, int]], None]

VERSIONS = {"torch": "2.13.0", "llmcompressor": "0.9.0"}


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


class Recipe:
    """Takes the place of the run in the optimize environment, and writes what such a run writes."""

    def __init__(self, write_safetensors: WriteSafetensors) -> None:
        self.runs = 0
        self.error: BaseException | None = None
        self.config: dict[str, Any] = {}
        self._write_safetensors = write_safetensors

    def __call__(self, environment: Environment, module: str, arguments: Sequence[str | Path], log: Path) -> None:
        kind, name, source, target, option, versions = arguments
        assert (environment.name, module, kind, option) == ("optimize", "quant.worker", "recipe", "--versions")
        assert name == "w8a8_int8_dynamic"
        source, target = Path(source), Path(target)
        self.runs += 1
        self._write_safetensors(target / "model.safetensors", {"layer.weight": 8, "layer.weight_scale": 4})
        if self.error is not None:
            raise self.error
        config = json.loads((source / "config.json").read_text())
        quantized = {"quantization_config": {"quant_method": "compressed-tensors"}}
        (target / "config.json").write_text(json.dumps({**config, **quantized, **self.config}))
        (target / "generation_config.json").write_text('{"temperature": 0.1}')
        (target / "recipe.yaml").write_text("quant_stage: {}\n")
        Path(versions).write_text(json.dumps(VERSIONS))


@pytest.fixture
def recipe(optimize: Environment, write_safetensors: WriteSafetensors, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    replacement = Recipe(write_safetensors)
    monkeypatch.setattr(jobs, "run_module", replacement)
    return replacement


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "built" / "release"


def refusal(*arguments: Any, **options: Any) -> str:
    """The one line with which a build is refused."""
    with pytest.raises(InputError) as caught:
        build_release(*arguments, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def test_a_release_holds_the_checkpoint_as_standard_and_the_recipes_weights_as_fast(
    recipe: Recipe, tiny: Path, out: Path
) -> None:
    source = checkpoint.open_checkpoint(tiny)
    release, built = build_release(tiny, out, max_model_len=48, engine_args={"enforce_eager": True})

    assert built
    assert releases.verify(out) == release
    assert sorted(path.name for path in out.iterdir()) == ["release.json", "variants"]
    assert release.name == "tiny"
    assert release.gate is None
    assert release.tools.items() >= VERSIONS.items()
    assert {"twinspeed"} < release.tools.keys() - VERSIONS.keys()
    assert release.parent == releases.parent_of(source, files.tree_sha256(source.hash_files()))

    assert list(release.variants) == ["standard", "fast"]
    standard, fast = release.variants["standard"], release.variants["fast"]
    for variant in (standard, fast):
        assert variant.lossless_to is None
        assert variant.capabilities.context == variant.engine.max_model_len == 48
        assert variant.engine.args == {"enforce_eager": True}
        folder = out / variant.weights.path
        assert variant.weights.bytes == (folder / "model.safetensors").stat().st_size
    assert (standard.weights.format, standard.weights.recipe, standard.speculation) == ("bf16", "copy", None)
    assert (fast.weights.format, fast.weights.recipe) == ("w8a8_int8", "w8a8_int8_dynamic")
    assert fast.speculation == build.FAST_SPECULATION
    assert fast.capabilities.sampling_not_supported == ("min_p", "logit_bias")
    assert standard.capabilities.sampling_not_supported == ()


def test_standard_is_the_checkpoint_byte_by_byte(recipe: Recipe, tiny: Path, out: Path, snapshot: Snapshot) -> None:
    build_release(tiny, out)
    assert snapshot(out / "variants/standard") == snapshot(tiny)


def test_fast_keeps_the_parents_own_side_files(recipe: Recipe, tiny: Path, out: Path) -> None:
    build_release(tiny, out)
    fast = out / "variants/fast"
    assert {path.name for path in fast.iterdir()} == {path.name for path in tiny.iterdir()}
    changed = [path.name for path in fast.iterdir() if path.read_bytes() != (tiny / path.name).read_bytes()]
    assert sorted(changed) == ["config.json", "model.safetensors"]


def test_the_whole_context_and_the_folders_name_are_the_defaults(recipe: Recipe, tiny: Path, out: Path) -> None:
    release, _ = build_release(tiny.rename(tiny.with_name("My Model")), out)
    assert release.name == "my-model"
    assert release.variants["fast"].engine.max_model_len == 64


@pytest.mark.parametrize(
    ("config", "number_format"),
    [({"dtype": "float16"}, "fp16"), ({"dtype": None, "torch_dtype": "float32"}, "fp32")],
)
def test_the_checkpoints_number_format_is_written_down(
    recipe: Recipe, tiny: Path, out: Path, change_json: ChangeJson, config: dict[str, Any], number_format: str
) -> None:
    change_json(tiny / "config.json", **config)
    assert build_release(tiny, out)[0].variants["standard"].weights.format == number_format


def test_all_shards_of_a_checkpoint_are_copied(
    recipe: Recipe, tiny: Path, out: Path, write_safetensors: WriteSafetensors, snapshot: Snapshot
) -> None:
    (tiny / "model.safetensors").unlink()
    shards = {f"layer{number}": f"model-{number}.safetensors" for number in range(2)}
    for name, shard in shards.items():
        write_safetensors(tiny / shard, {name: 8})
    (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))

    build_release(tiny, out)

    assert snapshot(out / "variants/standard") == snapshot(tiny)
    assert not list((out / "variants/fast").glob("*-*.safetensors"))
    assert not list((out / "variants/fast").glob("*.index.json"))


def test_the_same_release_is_not_built_twice(recipe: Recipe, tiny: Path, out: Path, snapshot: Snapshot) -> None:
    first, _ = build_release(tiny, out, engine_args={"swap_space": 1.0, "enforce_eager": True})
    before = snapshot(out)
    second, built = build_release(tiny, out, engine_args={"enforce_eager": True, "swap_space": 1.0})
    assert (second, built, recipe.runs) == (first, False, 1)
    assert snapshot(out) == before


def test_a_built_release_needs_no_optimize_environment(
    recipe: Recipe, optimize: Environment, tiny: Path, out: Path
) -> None:
    build_release(tiny, out)
    shutil.rmtree(optimize.path)
    assert not build_release(tiny, out)[1]


@pytest.mark.parametrize(
    "options", [{"name": "other"}, {"max_model_len": 32}, {"engine_args": {"enforce_eager": True}}], ids=str
)
def test_another_plan_for_the_same_folder_is_refused(
    recipe: Recipe, tiny: Path, out: Path, snapshot: Snapshot, options: dict[str, Any]
) -> None:
    build_release(tiny, out)
    before = snapshot(out)
    message = refusal(tiny, out, **options)
    assert message.startswith(f"{out} holds another release (tiny, built 2")
    assert "choose another --out" in message
    assert snapshot(out) == before


def test_another_checkpoint_for_the_same_folder_is_refused(
    recipe: Recipe, tiny: Path, out: Path, write_safetensors: WriteSafetensors
) -> None:
    build_release(tiny, out)
    write_safetensors(tiny / "model.safetensors", {"layer.weight": 24})
    assert refusal(tiny, out).startswith(f"{out} holds another release")


def test_a_damaged_release_is_not_taken_for_built(recipe: Recipe, tiny: Path, out: Path) -> None:
    build_release(tiny, out)
    (out / "variants/fast/model.safetensors").unlink()
    assert "variants/fast/model.safetensors is missing" in refusal(tiny, out)


@pytest.mark.parametrize("taken", ["file", "empty folder", "full folder"])
def test_a_folder_that_is_no_release_is_left_alone(
    recipe: Recipe, tiny: Path, out: Path, snapshot: Snapshot, taken: str
) -> None:
    out.parent.mkdir()
    if taken == "file":
        out.write_text("mine")
    else:
        out.mkdir()
    if taken == "full folder":
        (out / "mine").touch()
    before = snapshot(out.parent)
    assert refusal(tiny, out) == f"{out} exists and is no release: choose another --out"
    assert snapshot(out.parent) == before
    assert recipe.runs == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TwinspeedError("quant.worker failed: out of memory")], ids=repr)
def test_an_interrupted_build_goes_on_where_it_stopped(
    recipe: Recipe, tiny: Path, out: Path, error: BaseException
) -> None:
    recipe.error = error
    with pytest.raises(type(error)):
        build_release(tiny, out)
    assert not out.exists()
    [copied] = out.parent.rglob("model.safetensors")

    recipe.error = None
    copy_of_standard = copied.stat().st_ino
    release, built = build_release(tiny, out)

    assert built
    assert (out / "variants/standard/model.safetensors").stat().st_ino == copy_of_standard
    assert releases.verify(out) == release
    assert [path.name for path in out.parent.iterdir()] == ["release"]


def test_a_build_interrupted_while_verifying_does_not_run_the_recipe_again(
    recipe: Recipe, tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(releases, "verify", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_release(tiny, out)

    assert build_release(tiny, out)[0].tools.items() >= VERSIONS.items()
    assert recipe.runs == 1
    assert sorted(path.name for path in out.iterdir()) == ["release.json", "variants"]


def test_a_build_interrupted_at_its_last_step_is_made_again(
    recipe: Recipe, tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupt(source: Path, target: Path) -> None:
        if target == out:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_release(tiny, out)
    assert not out.exists()
    assert build_release(tiny, out)[1]
    assert releases.verify(out).name == "tiny"


def test_what_is_left_of_another_plan_is_not_used(recipe: Recipe, tiny: Path, out: Path) -> None:
    recipe.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        build_release(tiny, out)
    recipe.error = None
    (tiny / "chat_template.jinja").write_text("{{ messages }}")

    build_release(tiny, out)

    assert (out / "variants/standard/chat_template.jinja").read_text() == "{{ messages }}"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 5}, "vocab_size (4 → 5)"),
        ({"max_position_embeddings": 32}, "context_length (64 → 32)"),
        ({"vocab_size": 5, "max_position_embeddings": 32}, "vocab_size (4 → 5); context_length (64 → 32)"),
    ],
)
def test_a_recipe_that_makes_another_model_is_refused(
    recipe: Recipe, tiny: Path, out: Path, config: dict[str, Any], expected: str
) -> None:
    recipe.config = config
    assert refusal(tiny, out) == f"variant fast would differ from its parent {tiny} in: {expected}"
    assert not out.exists()


def test_a_recipe_that_makes_another_eos_is_refused(recipe: Recipe, tiny: Path, out: Path) -> None:
    (tiny / "generation_config.json").unlink()
    recipe.config = {"eos_token_id": 3}
    assert refusal(tiny, out).endswith(" in: eos_token_ids ((2,) → (3,))")
    assert not out.exists()


def test_a_side_file_that_the_parent_lacks_is_not_added(recipe: Recipe, tiny: Path, out: Path) -> None:
    (tiny / "generation_config.json").unlink()
    build_release(tiny, out)
    assert not (out / "variants/fast/generation_config.json").exists()


def test_a_checkpoint_of_unknown_dtype_is_refused_before_any_work(
    recipe: Recipe, tiny: Path, out: Path, change_json: ChangeJson
) -> None:
    change_json(tiny / "config.json", dtype="float8_e4m3fn")
    message = refusal(tiny, out)
    assert message == f"{tiny / 'config.json'}: dtype 'float8_e4m3fn' is not one of bfloat16, float16, float32"
    assert recipe.runs == 0
    assert not out.parent.exists()


def test_a_full_disk_is_refused_before_any_work(
    recipe: Recipe, tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(10**12, 10**12 - 10**6, 10**6))
    assert refusal(tiny, out).startswith(f"building the release needs 190.7 MiB in {out}, but its disk has 976.6 KiB")
    assert recipe.runs == 0
    assert not out.parent.exists()


def test_half_a_checkpoint_is_refused_and_nothing_is_left(recipe: Recipe, tiny: Path, out: Path) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(tiny, out).startswith(f"{path} is cut short")
    assert recipe.runs == 0
    assert not out.parent.exists()


def test_a_missing_optimize_environment_is_refused_before_any_work(tiny: Path, out: Path) -> None:
    assert "make it with `twinspeed env create optimize`" in refusal(tiny, out)
    assert not out.parent.exists()


@pytest.mark.parametrize("wanted", [0, -1, 65])
def test_a_context_that_the_checkpoint_does_not_have_is_refused(
    recipe: Recipe, tiny: Path, out: Path, wanted: int
) -> None:
    message = refusal(tiny, out, max_model_len=wanted)
    assert message == f"--max-model-len {wanted}: {tiny} has a context of 64 tokens; give 1 to 64"
    assert not out.parent.exists()


@pytest.mark.parametrize("name", ["", "Big", "a b", "-a", "a/b", "x" * 64, "a\n"])
def test_a_name_that_no_release_may_have_is_refused_before_any_work(
    recipe: Recipe, tiny: Path, out: Path, name: str
) -> None:
    assert refusal(tiny, out, name=name).startswith(f"{name!r} is no name for a release")
    assert recipe.runs == 0
    assert not out.parent.exists()


def test_engine_arguments_become_numbers_and_booleans_where_they_can() -> None:
    pairs = ["a=true", "b=2", "c=0.5", "d=text", "e=", "f=x=y", 'g="2"', "h=null", "i=[1]", "j=NaN", "k=1e999", "b=3"]
    expected = {
        "a": True,
        "b": 3,
        "c": 0.5,
        "d": "text",
        "e": "",
        "f": "x=y",
        "g": "2",
        "h": "null",
        "i": "[1]",
        "j": "NaN",
        "k": "1e999",
    }
    parsed = parse_engine_args(pairs)
    assert parsed == expected
    assert type(parsed["a"]) is bool
    assert parse_engine_args([]) == {}


@pytest.mark.parametrize("pair", ["enforce_eager", "", "=1", "--enforce-eager=1", "a b=1", "_=1"])
def test_an_engine_argument_without_a_name_and_a_value_is_refused(pair: str) -> None:
    with pytest.raises(InputError, match="give NAME=VALUE, such as enforce_eager=true") as caught:
        parse_engine_args([pair])
    assert repr(pair) in str(caught.value)
