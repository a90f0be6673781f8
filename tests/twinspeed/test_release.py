import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from twinspeed import files, release as releases
from twinspeed.errors import InputError
from twinspeed.release import Gate, Interval, Measurement, Override

pytestmark = pytest.mark.unit

ChangeJson = Callable[..., None]
Field = tuple[str | int, ...]

SCHEMA = Path(__file__).parents[2] / "docs" / "release.schema.json"
MEASUREMENT = Measurement(
    measure="output_tokens_per_s",
    value=12.5,
    unit="tokens/s",
    interval=Interval(low=12.0, high=13.0),
    n=6,
    workload="chat",
    concurrency=1,
    machine="2-core Xeon, 24 GiB",
    versions={"vllm": "0.32.0"},
    command="twinspeed release measure",
    date=datetime(2026, 1, 3, tzinfo=UTC),
)
MISSING = object()


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The one line with which a release is refused."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def set_field(folder: Path, field: Field, value: Any) -> None:
    """Change release.json behind its models' back; MISSING drops the field."""
    manifest = folder / releases.MANIFEST
    whole = json.loads(manifest.read_text())
    inner = whole
    for key in field[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[field[-1]]
    else:
        inner[field[-1]] = value
    manifest.write_text(json.dumps(whole))


def forge(folder: Path, variant: str = "fast") -> None:
    """Let the manifest list the variant's files as they are now, so that no hash gives a change away."""
    path = folder / "variants" / variant
    hashes = {name: files.sha256_file(path / name) for name in files.relative_files(path)}
    set_field(folder, ("variants", variant, "weights", "files"), hashes)


@pytest.fixture
def measured(tiny_release: Path) -> Path:
    """A release with evidence and a gate's decision."""
    loaded = releases.load(tiny_release)
    fast = loaded.variants["fast"]
    evidence = fast.evidence.model_copy(update={"speed": (MEASUREMENT,)})
    variants = {**loaded.variants, "fast": fast.model_copy(update={"evidence": evidence})}
    gate = Gate(
        policy="default",
        verdict="insufficient",
        decided_at=datetime(2026, 1, 4, tzinfo=UTC),
        override=Override(by="ada", why="a test"),
    )
    releases.save(loaded.model_copy(update={"variants": variants, "gate": gate}), tiny_release)
    return tiny_release


def test_a_release_is_read_as_it_was_written(measured: Path, tmp_path: Path) -> None:
    loaded = releases.load(measured)
    assert loaded.variants["fast"].evidence.speed == (MEASUREMENT,)
    assert loaded.gate is not None
    releases.save(loaded, tmp_path / "copy")
    assert releases.load(tmp_path / "copy") == loaded
    assert (tmp_path / "copy" / "release.json").read_bytes() == (measured / "release.json").read_bytes()


def test_a_folder_without_a_release_says_how_to_build_one(tmp_path: Path) -> None:
    message = refusal(releases.load, tmp_path)
    assert message.startswith(f"no release at {tmp_path}: {tmp_path / 'release.json'} is missing")
    assert "twinspeed release build" in message


FAST: Field = ("variants", "fast")
WEIGHTS: Field = (*FAST, "weights")
SPEED: Field = (*FAST, "evidence", "speed")
SHA = "0" * 64


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (("surprise",), 1, "surprise: Extra inputs are not permitted"),
        ((*FAST, "engine", "surprise"), 1, "variants.fast.engine.surprise: Extra inputs"),
        (("name",), MISSING, "name: Field required"),
        (("parent", "vocab_size"), MISSING, "parent.vocab_size: Field required"),
        ((*FAST, "speculation"), MISSING, "variants.fast.speculation: Field required"),
        (("name",), "Not A Name", "name: String should match pattern"),
        (("name",), "", "name: String should match pattern"),
        (("created_at",), "yesterday", "created_at: Input should be a valid datetime"),
        (("variants",), [], "variants: Input should be an object"),
        ((*WEIGHTS, "bytes"), "many", "variants.fast.weights.bytes: Input should be a valid integer"),
        ((*WEIGHTS, "bytes"), 0, "variants.fast.weights.bytes: Input should be greater than 0"),
        ((*WEIGHTS, "format"), "int3", "variants.fast.weights.format: Input should be 'bf16'"),
        (("parent", "tree_sha256"), "A" * 64, "parent.tree_sha256: String should match pattern"),
        (("parent", "tokenizer_sha256"), "0" * 63, "parent.tokenizer_sha256: String should match pattern"),
        ((*WEIGHTS, "files"), {"a": "00"}, "variants.fast.weights.files.a: String should match pattern"),
        ((*WEIGHTS, "files"), {}, "variants.fast.weights.files: Dictionary should have at least 1 item"),
        ((*WEIGHTS, "files"), {"/etc/passwd": SHA}, "variants.fast.weights.files./etc/passwd.[key]: Value error, must"),
        ((*WEIGHTS, "files"), {"../a": SHA}, "variants.fast.weights.files.../a.[key]: Value error, must be a relative"),
        ((*WEIGHTS, "path"), "/variants/fast", "variants.fast.weights.path: Value error, must be a relative path"),
        ((*WEIGHTS, "path"), "variants/../..", "variants.fast.weights.path: Value error, must be a relative path"),
        ((*WEIGHTS, "path"), "..\\fast", "variants.fast.weights.path: Value error, must be a relative path"),
        ((*WEIGHTS, "path"), "", "variants.fast.weights.path: Value error, must be a relative path"),
        (("variants", "standard"), MISSING, "(whole file): Value error, variants.standard is missing"),
        (("variants", "Bad Name"), {}, "variants.Bad Name.[key]: String should match pattern"),
        ((*FAST, "lossless_to"), "faster", "(whole file): Value error, variants.fast.lossless_to names 'faster'"),
        ((*FAST, "lossless_to"), "fast", "(whole file): Value error, variants.fast.lossless_to names 'fast'"),
        (
            (*FAST, "engine", "max_model_len"),
            65,
            "(whole file): Value error, variants.fast.engine.max_model_len 65 is above the parent's context_length 64",
        ),
        (
            (*FAST, "speculation", "prompt_lookup_min"),
            4,
            "variants.fast.speculation: Value error, prompt_lookup_min 4 is above prompt_lookup_max 3",
        ),
        ((*FAST, "speculation", "method"), "oracle", "variants.fast.speculation.method: Input should be 'ngram'"),
        (
            (*SPEED, 0, "interval"),
            {"low": 2.0, "high": 1.0},
            "variants.fast.evidence.speed.0.interval: Value error, low 2.0 is above high 1.0",
        ),
        ((*SPEED, 0, "n"), 0, "variants.fast.evidence.speed.0.n: Input should be greater than or equal to 1"),
        (("gate", "verdict"), "maybe", "gate.verdict: Input should be 'pass'"),
        (("schema_version",), 2, "schema_version: Input should be 1"),
        (("schema_version",), "1", "schema_version: Input should be 1"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(measured: Path, field: Field, value: Any, expected: str) -> None:
    set_field(measured, field, value)
    assert refusal(releases.load, measured).startswith(f"{measured / 'release.json'}: {expected}")


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'"release"', b"\xff\xfe"])
def test_a_file_that_is_no_json_object_is_refused(tiny_release: Path, content: bytes) -> None:
    (tiny_release / "release.json").write_bytes(content)
    assert refusal(releases.load, tiny_release).startswith(f"{tiny_release / 'release.json'}: (whole file): ")


def test_a_truncated_file_is_refused_wherever_it_ends(tiny_release: Path) -> None:
    manifest = tiny_release / "release.json"
    whole = manifest.read_bytes().rstrip()
    for size in range(0, len(whole), 97):
        manifest.write_bytes(whole[:size])
        assert "(whole file): Invalid JSON: EOF while parsing" in refusal(releases.load, tiny_release)


def test_an_unknown_variant_is_refused_with_those_there_are(tiny_release: Path) -> None:
    loaded = releases.load(tiny_release)
    assert loaded.variant("fast") is loaded.variants["fast"]
    assert refusal(loaded.variant, "faster") == "release tiny has no variant 'faster'; it has: standard, fast"
    assert "it has: standard, fast" in refusal(releases.verify, tiny_release, only="faster")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SmolLM2 135M", "smollm2-135m"),
        ("a.b_c-d", "a.b_c-d"),
        ("--x--", "x"),
        ("模型", "release"),
        ("x" * 80, "x" * 63),
    ],
)
def test_a_name_is_made_of_any_text(text: str, name: str) -> None:
    assert releases.name_from(text) == name


@pytest.mark.parametrize("use_cache", [False, True])
def test_a_whole_release_is_verified_wherever_it_lies(tiny_release: Path, tmp_path: Path, use_cache: bool) -> None:
    loaded = releases.load(tiny_release)
    assert releases.verify(tiny_release, use_cache=use_cache) == loaded
    moved = tmp_path / "another disk" / "moved"
    shutil.copytree(tiny_release, moved)
    shutil.rmtree(tiny_release)
    assert releases.verify(moved, use_cache=use_cache) == loaded
    link = tmp_path / "link"
    link.symlink_to(moved)
    assert releases.verify(link, use_cache=use_cache) == loaded


def test_a_relative_release_folder_is_verified(tiny_release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_release)
    assert releases.verify(Path(".")).name == "tiny"


@pytest.mark.parametrize("use_cache", [False, True])
def test_a_missing_file_is_named(tiny_release: Path, use_cache: bool) -> None:
    (tiny_release / "variants/fast/tokenizer_config.json").unlink()
    expected = f"{tiny_release}: variant fast: variants/fast/tokenizer_config.json is missing"
    assert refusal(releases.verify, tiny_release, use_cache=use_cache) == expected


def test_a_missing_variant_folder_is_named(tiny_release: Path) -> None:
    shutil.rmtree(tiny_release / "variants/fast")
    message = refusal(releases.verify, tiny_release)
    assert message.startswith(f"{tiny_release}: variants.fast.weights.path: folder ")
    assert message.endswith(" is missing")


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "chat_template.jinja"])
def test_a_changed_byte_is_found(tiny_release: Path, name: str, use_cache: bool) -> None:
    releases.verify(tiny_release, use_cache=use_cache)
    path = tiny_release / "variants/fast" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = refusal(releases.verify, tiny_release, use_cache=use_cache)
    assert message.startswith(f"{tiny_release}: variant fast: variants/fast/{name} has changed since ")


@pytest.mark.parametrize("name", ["extra.safetensors", "deep/extra.safetensors", ".hidden"])
def test_a_file_that_is_not_listed_is_named(tiny_release: Path, name: str) -> None:
    path = tiny_release / "variants/standard" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    expected = f"{tiny_release}: variant standard: variants/standard/{name} is not listed in release.json"
    assert refusal(releases.verify, tiny_release) == expected


def test_a_variant_folder_that_leads_outside_is_refused(tiny_release: Path, tmp_path: Path) -> None:
    (tiny_release / "variants/fast").rename(tmp_path / "outside")
    (tiny_release / "variants/fast").symlink_to(tmp_path / "outside")
    expected = f"{tiny_release}: variants.fast.weights.path leads outside the release folder"
    assert refusal(releases.verify, tiny_release) == expected


def test_a_file_that_leads_outside_is_refused(tiny_release: Path, tmp_path: Path) -> None:
    path = tiny_release / "variants/fast/model.safetensors"
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    expected = f"{tiny_release}: variant fast: variants/fast/model.safetensors leads outside the release folder"
    assert refusal(releases.verify, tiny_release) == expected


def test_links_inside_the_release_are_fine(tiny_release: Path) -> None:
    path = tiny_release / "variants/fast/model.safetensors"
    path.unlink()
    path.symlink_to("../standard/model.safetensors")
    assert releases.verify(tiny_release).name == "tiny"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {}}}, "tokenizer"),
        ("tokenizer_config.json", {"eos_token": "<|end|>"}, "tokenizer"),
        ("tokenizer_config.json", {"add_bos_token": True}, "tokenizer"),
        ("generation_config.json", {"temperature": 0.1}, "generation config"),
        ("generation_config.json", {"eos_token_id": 2}, "generation config, EOS token ids"),
        ("config.json", {"vocab_size": 5}, "vocabulary size"),
    ],
)
def test_a_variant_that_is_another_model_is_refused_although_its_hashes_fit(
    tiny_release: Path, change_json: ChangeJson, name: str, change: dict[str, Any], expected: str
) -> None:
    change_json(tiny_release / "variants/fast" / name, **change)
    forge(tiny_release)
    expected = f"{tiny_release}: variant fast differs from its parent in {expected}"
    assert refusal(releases.verify, tiny_release) == expected


@pytest.mark.parametrize("template", ["{{ messages }}", None])
def test_another_chat_template_is_refused_although_its_hash_fits(tiny_release: Path, template: str | None) -> None:
    path = tiny_release / "variants/fast/chat_template.jinja"
    path.unlink()
    if template is not None:
        path.write_text(template)
    forge(tiny_release)
    assert refusal(releases.verify, tiny_release).endswith("variant fast differs from its parent in chat template")


def test_half_a_variant_is_refused_although_its_hashes_fit(tiny_release: Path) -> None:
    path = tiny_release / "variants/fast/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    forge(tiny_release)
    assert f"{path} is cut short" in refusal(releases.verify, tiny_release)


def test_one_variant_can_be_verified_alone(tiny_release: Path) -> None:
    (tiny_release / "variants/fast/model.safetensors").unlink()
    assert releases.verify(tiny_release, only="standard").name == "tiny"
    assert "model.safetensors is missing" in refusal(releases.verify, tiny_release, only="fast")


def test_the_published_schema_is_that_of_the_models() -> None:
    assert SCHEMA.read_text() == releases.json_schema(), "run `make schema`"
