"""What the router is told: one YAML document, checked whole before any of it counts."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinspeed.errors import InputError

DEFAULT_VARIANT = "standard"
LaneName = Literal["interactive", "batch", "rollout"]

# A variant's name stands in model ids, response headers and metric labels.
_VARIANT = r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"
# Suffixes that ask for a goal, so that no variant may be called so.
GOALS = ("floor", "nitro")


def _engine_root(value: str) -> str:
    try:
        parts = urlsplit(value)
        valid = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{value!r} is no http URL; expected one such as http://127.0.0.1:8001")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{value!r}: give the engine's root, {parts.scheme}://HOST:PORT, and nothing after it")
    return f"{parts.scheme}://{parts.netloc}"


def _model_name(value: str) -> str:
    if not value or not value.isprintable() or value != value.strip():
        raise ValueError(f"{value!r}: give the model a printable name without spaces around it")
    return value


EngineUrl = Annotated[str, AfterValidator(_engine_root)]
VariantName = Annotated[str, Field(pattern=_VARIANT)]
Seconds = Annotated[float, Field(gt=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Listen(_Settings):
    """Where clients connect. `workers` processes share the port (SO_REUSEPORT)."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=256)


class Admin(_Settings):
    """The administrators' API, on a port of its own, with a key of its own (SHA-256 in hexadecimal)."""

    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)
    key_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class KubernetesService(_Settings):
    """Replicas found as the ready endpoints of a Service (EndpointSlice, discovery.k8s.io/v1)."""

    namespace: str = Field(min_length=1)
    service: str = Field(min_length=1)
    port: int | str = Field(default="http", description="a port's number or its name in the slice")


class VariantSettings(_Settings):
    """One variant's replicas, and what the release does not say about them."""

    replicas: tuple[EngineUrl, ...] = ()
    kubernetes: KubernetesService | None = None
    usd_per_hour: float | None = Field(default=None, ge=0, description="one replica's hardware")
    max_in_flight: int = Field(default=256, ge=1, description="requests that one replica gets at once, at most")
    priority_scheduling: bool = Field(
        default=False,
        description="its engines run with `--scheduling-policy priority`, and are told which requests can wait",
    )
    speculates: bool = Field(default=False, description="where no release says so")
    lossless_to: str | None = Field(default=None, description="where no release says so")

    @model_validator(mode="after")
    def _has_replicas(self) -> Self:
        if bool(self.replicas) == (self.kubernetes is not None):
            raise ValueError("give either `replicas`, a list of URLs, or `kubernetes`, a Service to find them by")
        if len(set(self.replicas)) != len(self.replicas):
            raise ValueError("a replica is listed twice")
        return self


class Shadow(_Settings):
    """A share of the requests is sent to a second variant too, whose answer is compared and dropped."""

    variant: VariantName
    share: float = Field(gt=0, le=1)


class Cascade(_Settings):
    """Requests that are not streamed try `first`; where the verifier says no, `then` answers."""

    first: VariantName = "fast"
    then: VariantName = DEFAULT_VARIANT
    verifier: Literal["json_schema", "regex", "http"]
    pattern: str | None = Field(default=None, description="for `regex`: the whole answer has to match it")
    url: str | None = Field(default=None, description="for `http`: POST {request, response} → {accept: bool}")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.verifier == "regex":
            if self.pattern is None:
                raise ValueError("the verifier `regex` needs `pattern`")
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern {self.pattern!r}: {error}") from None
        if self.verifier == "http" and self.url is None:
            raise ValueError("the verifier `http` needs `url`")
        return self


class ModelSettings(_Settings):
    """One model: its variants and how the router chooses among them."""

    name: Annotated[str, AfterValidator(_model_name)]
    release: str | None = Field(default=None, description="the release's folder: evidence and capabilities")
    max_quality_loss: float = Field(default=0.0, ge=0, description="ε: the expected loss that a choice may cost")
    variants: dict[VariantName, VariantSettings]
    shadow: Shadow | None = None
    cascade: Cascade | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if DEFAULT_VARIANT not in self.variants:
            raise ValueError(f"variants.{DEFAULT_VARIANT} is missing: every model has one")
        for goal in GOALS:
            if goal in self.variants:
                raise ValueError(f"variants.{goal}: `{goal}` is a goal and cannot be a variant's name")
        urls = [url for variant in self.variants.values() for url in variant.replicas]
        if len(set(urls)) != len(urls):
            raise ValueError("a replica is listed for two variants")
        named = {
            "shadow.variant": self.shadow and self.shadow.variant,
            "cascade.first": self.cascade and self.cascade.first,
            "cascade.then": self.cascade and self.cascade.then,
        }
        named |= {f"variants.{name}.lossless_to": variant.lossless_to for name, variant in self.variants.items()}
        for field, name in named.items():
            if name is not None and name not in self.variants:
                raise ValueError(f"{field} names {name!r}, which is no variant of this model")
        return self


class Timeouts(_Settings):
    """Seconds that an engine may take."""

    connect: Seconds = 5.0
    first_byte: Seconds = Field(default=600.0, description="from the request to the response's first byte")
    between_bytes: Seconds = Field(default=120.0, description="the longest silence inside a response")
    total: Seconds = Field(default=3600.0, description="the whole response")


class Lane(_Settings):
    """One traffic class."""

    queue: int = Field(default=1024, ge=0, description="requests that may wait")
    max_wait: Seconds = Field(default=60.0, description="seconds that one may wait before it is refused")
    timeouts: Timeouts = Timeouts()


class Lanes(_Settings):
    interactive: Lane = Lane(queue=1024, max_wait=60.0)
    batch: Lane = Lane(queue=10_000, max_wait=3600.0)
    rollout: Lane = Lane(queue=10_000, max_wait=3600.0, timeouts=Timeouts(first_byte=3600.0, total=86_400.0))

    def named(self, name: LaneName) -> Lane:
        lane: Lane = getattr(self, name)
        return lane


class Retries(_Settings):
    """Another try on another replica, before the first byte only."""

    attempts: int = Field(default=3, ge=1, le=10, description="tries in all")
    budget: float = Field(default=0.2, ge=0, description="retries ÷ requests, over the last minute or so")
    backoff: Seconds = Field(default=0.025, description="seconds; doubles with each try, with full jitter")
    backoff_max: Seconds = 1.0
    hedge_after: Seconds | None = Field(default=None, description="a second try for unstreamed requests, after this")


class Breaker(_Settings):
    """Keeps requests from a replica that fails again and again. An engine's 4xx never counts."""

    failures: int = Field(default=5, ge=1, description="in a row, after which the replica gets nothing")
    open_for: Seconds = Field(default=5.0, description="seconds until one request is let through as a trial")


class Fleet(_Settings):
    """How replicas are watched."""

    poll_interval: Seconds = Field(default=1.0, description="between two looks at an engine's health and metrics")
    slow_start: float = Field(default=30.0, ge=0, description="seconds over which a new replica's share grows")


class BodyLimits(_Settings):
    """The largest request that is read."""

    body_bytes: int = Field(default=64 * 1024 * 1024, ge=1)
    header_bytes: int = Field(default=64 * 1024, ge=1024)
    messages: int = Field(default=10_000, ge=1)


class State(_Settings):
    """Where keys, budgets, files and batches live."""

    url: str = Field(
        default="memory:",
        description="memory:, sqlite:///PATH, redis://HOST:PORT/DB or postgresql://USER@HOST/DB: keys and limits",
    )
    folder: str | None = Field(
        default=None, description="files and batches, on a local disk; without it neither is served"
    )
    file_bytes: int = Field(default=512 * 1024 * 1024, ge=1, description="the largest file")
    batch_requests: int = Field(
        default=32, ge=1, le=10_000, description="requests of batches that one process has under way at once"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.url.partition(":")[0] not in ("memory", "sqlite", "redis", "rediss", "postgresql"):
            raise ValueError(f"url {self.url!r}: expected memory:, sqlite:///…, redis://… or postgresql://…")
        return self


class RouterConfig(_Settings):
    """The whole document."""

    listen: Listen = Listen()
    admin: Admin | None = None
    auth: Literal["required", "off"] = "required"
    models: tuple[ModelSettings, ...] = Field(min_length=1)
    lanes: Lanes = Lanes()
    retries: Retries = Retries()
    breaker: Breaker = Breaker()
    fleet: Fleet = Fleet()
    limits: BodyLimits = BodyLimits()
    state: State = State()
    access_log: str | None = Field(default=None, description="a file for JSON lines; `-` for standard output")
    otlp_endpoint: str | None = Field(default=None, description="OpenTelemetry collector, OTLP over HTTP")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("models: a name is given twice")
        if self.auth == "required" and self.state.url == "memory:":
            raise ValueError("auth is required, and state.url memory: keeps no keys; name a store, or set auth: off")
        if self.listen.workers > 1 and self.state.url.startswith("sqlite"):
            raise ValueError(
                "state.url: several workers cannot share the limits of sqlite; use redis:// or postgresql://"
            )
        return self


def parse_config(
    name: str,
    engines: Iterable[str],
    *,
    release: str | None = None,
    usd_per_hour: float | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> RouterConfig:
    """A router without keys for one model, from `VARIANT=URL` items; `usd_per_hour` is one engine's hardware.

    Raises:
        InputError: one is malformed, or `standard` is missing; says which and why.
    """
    variants: dict[str, list[str]] = {}
    for item in engines:
        variant, separator, url = item.partition("=")
        if not separator:
            raise InputError(f"--engine {item}: expected VARIANT=URL, such as standard=http://127.0.0.1:8001.")
        if not re.match(_VARIANT, variant):
            raise InputError(
                f"--engine {item}: {variant!r} is no variant name; use a-z, 0-9 and, between them, '.', '_', '-'."
            )
        try:
            _engine_root(url)
        except ValueError as error:
            raise InputError(f"--engine {item}: {error}.") from None
        variants.setdefault(variant, []).append(url)
    if DEFAULT_VARIANT not in variants:
        raise InputError(
            f"--engine: no engine for variant {DEFAULT_VARIANT}; add --engine {DEFAULT_VARIANT}=http://HOST:PORT."
        )
    try:
        _model_name(name)
    except ValueError as error:
        raise InputError(f"--name {error}.") from None
    settings = {variant: {"replicas": urls, "usd_per_hour": usd_per_hour} for variant, urls in variants.items()}
    try:
        model = ModelSettings.model_validate({"name": name, "release": release, "variants": settings})
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"--engine: {reason}.") from None
    return RouterConfig(auth="off", listen=Listen(host=host, port=port), models=(model,))
