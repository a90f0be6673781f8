"""`release.json`, the contract between the stages: one checkpoint's variants, hashed, with their evidence.

Every stage that reads a release opens it through here, so that an invalid one is refused in one place, with the field's
path and the reason. The JSON Schema in `docs/release.schema.json` is generated from these models.
"""

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinspeed import checkpoint, files
from twinspeed.errors import InputError

MANIFEST = "release.json"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
Name = Annotated[str, Field(pattern=_NAME)]


def _inside_release(value: str) -> str:
    path = PurePosixPath(value)
    if not value or path.is_absolute() or ".." in path.parts or "\\" in value:
        raise ValueError(f"must be a relative path inside the release folder, found {value!r}")
    return value


RelativePath = Annotated[str, AfterValidator(_inside_release)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Parent(_Model):
    """The checkpoint that every variant comes from."""

    uri: str
    tree_sha256: Sha256
    architecture: str
    context_length: int = Field(gt=0, description="tokens")
    vocab_size: int = Field(gt=0)
    tokenizer_sha256: Sha256
    chat_template_sha256: Sha256 | None
    generation_config_sha256: Sha256
    eos_token_ids: tuple[int, ...]


class Weights(_Model):
    """A variant's model folder inside the release."""

    path: RelativePath
    format: Literal["bf16", "fp16", "fp32", "w8a8_int8"]
    recipe: str = Field(description="the recipe that wrote these weights; `copy` for the parent's own")
    bytes: int = Field(gt=0, description="safetensors only")
    files: dict[RelativePath, Sha256] = Field(min_length=1)


class NgramSpeculation(_Model):
    """Tokens proposed by looking up the last tokens earlier in the text; needs no drafter."""

    method: Literal["ngram"] = "ngram"
    num_speculative_tokens: int = Field(ge=1, le=32)
    prompt_lookup_min: int = Field(ge=1)
    prompt_lookup_max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min {self.prompt_lookup_min} is above prompt_lookup_max {self.prompt_lookup_max}"
            )
        return self


class Parallel(_Model):
    """How one replica spreads over accelerators; ignored on CPU, where a replica is one worker."""

    tensor: int = Field(default=1, ge=1)
    pipeline: int = Field(default=1, ge=1)
    data: int = Field(default=1, ge=1)


class EngineSettings(_Model):
    """What the engine is started with, beside weights and speculation."""

    max_model_len: int = Field(gt=0, description="tokens")
    max_num_seqs: int = Field(default=32, ge=1, description="sequences in one engine step, at most")
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    parallel: Parallel = Parallel()
    args: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="further vLLM options by name, without dashes in front"
    )
    env: dict[str, str] = Field(default_factory=dict)


class Capabilities(_Model):
    """What a client may ask of this variant."""

    context: int = Field(gt=0, description="tokens")
    modalities: tuple[Literal["text", "image", "audio"], ...] = ("text",)
    sampling_not_supported: tuple[str, ...] = ()


class Interval(_Model):
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class Measurement(_Model):
    """One measured figure, with what is needed to trust it or to measure it again."""

    measure: str
    value: float
    unit: str
    interval: Interval | None
    n: int = Field(ge=1, description="observations behind the value")
    workload: str
    concurrency: int = Field(ge=1)
    machine: str
    versions: dict[str, str]
    command: str
    date: datetime


class Evidence(_Model):
    conformance: tuple[Measurement, ...] = ()
    quality: tuple[Measurement, ...] = ()
    speed: tuple[Measurement, ...] = ()
    cost: tuple[Measurement, ...] = ()


class Variant(_Model):
    """One servable form of the checkpoint."""

    weights: Weights
    speculation: NgramSpeculation | None
    lossless_to: Name | None = Field(description="the variant whose output distribution this one equals")
    engine: EngineSettings
    capabilities: Capabilities
    evidence: Evidence = Evidence()


class Override(_Model):
    by: str
    why: str


class Gate(_Model):
    """The decision that the variants are good enough."""

    policy: str
    verdict: Literal["pass", "fail", "insufficient"]
    decided_at: datetime
    override: Override | None = None


class Release(_Model):
    """The whole of `release.json`."""

    schema_version: Literal[1] = 1
    name: Name
    created_at: datetime
    tools: dict[str, str]
    parent: Parent
    variants: dict[Name, Variant]
    gate: Gate | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "standard" not in self.variants:
            raise ValueError("variants.standard is missing: every release has one")
        for name, variant in self.variants.items():
            target = variant.lossless_to
            if target is not None and (target == name or target not in self.variants):
                raise ValueError(f"variants.{name}.lossless_to names {target!r}, which is no other variant")
            if variant.engine.max_model_len > self.parent.context_length:
                raise ValueError(
                    f"variants.{name}.engine.max_model_len {variant.engine.max_model_len} is above the parent's "
                    f"context_length {self.parent.context_length}"
                )
        return self

    def variant(self, name: str) -> Variant:
        """The named variant.

        Raises:
            InputError: there is none; lists those there are.
        """
        try:
            return self.variants[name]
        except KeyError:
            known = ", ".join(self.variants)
            raise InputError(f"release {self.name} has no variant {name!r}; it has: {known}") from None


def name_from(text: str) -> str:
    """A valid release name made from any text, such as a folder's name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63] or "release"


def require_name(text: str) -> str:
    """`text`, if a release may be called that.

    Raises:
        InputError: it may not; says what a name is made of.
    """
    if not re.fullmatch(_NAME, text):
        raise InputError(
            f"{text!r} is no name for a release: give up to 63 of a-z, 0-9, `.`, `_` and `-`, "
            "the first a letter or a digit"
        )
    return text


def load(folder: Path) -> Release:
    """Read and validate `folder/release.json`. Weights are not looked at.

    Raises:
        InputError: missing or invalid; names the first field at fault and the reason.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise InputError(f"no release at {folder}: {manifest} is missing; build one with `twinspeed release build`")
    try:
        return Release.model_validate_json(manifest.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise InputError(f"{manifest}: {field}: {first['msg']}") from None


def save(release: Release, folder: Path) -> None:
    """Write `folder/release.json` atomically."""
    files.write_atomically(folder / MANIFEST, release.model_dump_json(indent=2) + "\n")


def verify(folder: Path, *, only: str | None = None, use_cache: bool = False) -> Release:
    """Load a release and prove that its files are the ones it names and that its variants are their parent's equals.

    Args:
        only: check this variant alone, as its engine does on start.
        use_cache: trust a file whose size and mtime have not changed since it was last hashed.

    Raises:
        InputError: names the variant and the file that is missing, changed or unlisted, or what differs.
    """
    release = load(folder)
    chosen = {only: release.variant(only)} if only is not None else release.variants
    hash_file = files.sha256_cached if use_cache else files.sha256_file
    for name, variant in chosen.items():
        weights = folder / variant.weights.path
        if not _is_inside(folder, weights):
            raise InputError(f"{folder}: variants.{name}.weights.path leads outside the release folder")
        _verify_files(folder, name, variant, hash_file)
        opened = checkpoint.open_checkpoint(weights)
        differing = _differs_from_parent(release.parent, opened.identity)
        if differing:
            raise InputError(f"{folder}: variant {name} differs from its parent in {', '.join(differing)}")
    return release


def parent_of(opened: checkpoint.Checkpoint, tree_sha256: str) -> Parent:
    """How a release describes the checkpoint it was built from."""
    identity = opened.identity
    return Parent(
        uri=opened.path.resolve().as_uri(),
        tree_sha256=tree_sha256,
        architecture=opened.architecture,
        context_length=identity.context_length,
        vocab_size=identity.vocab_size,
        tokenizer_sha256=_tokenizer_sha256(identity),
        chat_template_sha256=_template_sha256(identity),
        generation_config_sha256=_generation_sha256(identity),
        eos_token_ids=identity.eos_token_ids,
    )


def json_schema() -> str:
    """The JSON Schema of `release.json`, as `docs/release.schema.json` holds it."""
    return json.dumps(Release.model_json_schema(), indent=2) + "\n"


def _verify_files(folder: Path, name: str, variant: Variant, hash_file: Callable[[Path], str]) -> None:
    weights = folder / variant.weights.path
    if not weights.is_dir():
        raise InputError(f"{folder}: variants.{name}.weights.path: folder {weights} is missing")
    listed, found = set(variant.weights.files), set(files.relative_files(weights))
    for problem, names in (("missing", listed - found), ("not listed in release.json", found - listed)):
        if names:
            raise InputError(f"{folder}: variant {name}: {variant.weights.path}/{min(names)} is {problem}")
    for file_name, expected in variant.weights.files.items():
        if not _is_inside(folder, weights / file_name):
            raise InputError(
                f"{folder}: variant {name}: {variant.weights.path}/{file_name} leads outside the release folder"
            )
        actual = hash_file(weights / file_name)
        if actual != expected:
            raise InputError(
                f"{folder}: variant {name}: {variant.weights.path}/{file_name} has changed since the release was built "
                f"(sha256 {actual[:12]}…, release.json says {expected[:12]}…); build the release again"
            )


def _is_inside(folder: Path, path: Path) -> bool:
    """Whether `path` still lies in `folder` when links are followed, so that the folder can be moved and mirrored."""
    return path.resolve().is_relative_to(folder.resolve())


def _differs_from_parent(parent: Parent, identity: checkpoint.Identity) -> list[str]:
    pairs = {
        "tokenizer": (parent.tokenizer_sha256, _tokenizer_sha256(identity)),
        "chat template": (parent.chat_template_sha256, _template_sha256(identity)),
        "generation config": (parent.generation_config_sha256, _generation_sha256(identity)),
        "EOS token ids": (parent.eos_token_ids, identity.eos_token_ids),
        "vocabulary size": (parent.vocab_size, identity.vocab_size),
    }
    return [what for what, (expected, actual) in pairs.items() if expected != actual]


def _tokenizer_sha256(identity: checkpoint.Identity) -> str:
    settings = json.dumps(identity.tokenizer_config, sort_keys=True)
    return files.tree_sha256({**identity.tokenizer, "tokenizer_config.json": settings})


def _template_sha256(identity: checkpoint.Identity) -> str | None:
    if identity.chat_template is None:
        return None
    return files.tree_sha256({"chat_template.jinja": identity.chat_template})


def _generation_sha256(identity: checkpoint.Identity) -> str:
    settings = json.dumps(identity.generation_config, sort_keys=True)
    return files.tree_sha256({"generation_config.json": settings})
