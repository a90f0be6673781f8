"""What the router serves: the model's name and the engine behind each variant."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from twinspeed.errors import InputError

# A variant's name stands in model ids, response headers and metric labels.
_VARIANT = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")

DEFAULT_VARIANT = "standard"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One engine: where it listens and the model id it serves under."""

    variant: str
    base_url: str
    model_id: str


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """`upstreams` by variant, `standard` among them."""

    name: str
    upstreams: Mapping[str, Upstream]

    @property
    def models(self) -> dict[str, Upstream]:
        """Every model id a client may ask for, and the engine that answers it; the bare name first."""
        pinned = {upstream.model_id: upstream for upstream in self.upstreams.values()}
        return {self.name: self.upstreams[DEFAULT_VARIANT], **pinned}


def parse_config(name: str, engines: Iterable[str]) -> RouterConfig:
    """Reads `VARIANT=URL` items. InputError where one is malformed or doubled, or `standard` is missing."""
    if not name or not name.isprintable() or name != name.strip():
        raise InputError(f"--name {name!r}: give the model a printable name without spaces around it.")
    upstreams: dict[str, Upstream] = {}
    for item in engines:
        upstream = _parse_engine(name, item)
        if upstream.variant in upstreams:
            raise InputError(f"--engine {item}: variant {upstream.variant} is given twice; name each variant once.")
        upstreams[upstream.variant] = upstream
    if DEFAULT_VARIANT not in upstreams:
        raise InputError(
            f"--engine: no engine for variant {DEFAULT_VARIANT}; add --engine {DEFAULT_VARIANT}=http://HOST:PORT."
        )
    return RouterConfig(name, MappingProxyType(upstreams))


def _parse_engine(name: str, item: str) -> Upstream:
    variant, separator, url = item.partition("=")
    if not separator:
        raise InputError(f"--engine {item}: expected VARIANT=URL, such as standard=http://127.0.0.1:8001.")
    if not _VARIANT.fullmatch(variant):
        raise InputError(
            f"--engine {item}: {variant!r} is no variant name; use a-z, 0-9 and, between them, '.', '_', '-'."
        )
    return Upstream(variant, _parse_url(item, url), f"{name}:{variant}")


def _parse_url(item: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f"--engine {item}: {url!r} is no http URL; expected one such as http://127.0.0.1:8001.")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise InputError(f"--engine {item}: give the engine's root, {parts.scheme}://HOST:PORT, and nothing after it.")
    return f"{parts.scheme}://{parts.netloc}"
