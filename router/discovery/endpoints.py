"""EndpointSlices (discovery.k8s.io/v1) as the API server gives them, and the replicas they stand for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel


def _nothing_is_empty(value: object) -> object:
    # Go writes an empty list as null.
    return () if value is None else value


class _Object(BaseModel):
    """Fields beyond those that are read here are ignored."""

    model_config = ConfigDict(alias_generator=to_camel)


class Metadata(_Object):
    name: str = ""
    resource_version: str = Field(min_length=1)


class Conditions(_Object):
    """None is unknown, which Kubernetes has us take as ready, serving and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Target(_Object):
    uid: str | None = None


class Endpoint(_Object):
    addresses: tuple[str, ...]
    conditions: Conditions | None = None
    target_ref: Target | None = None

    @property
    def usable(self) -> bool:
        state = self.conditions or Conditions()
        return state.ready is not False and state.serving is not False and state.terminating is not True


class Port(_Object):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class Slice(_Object):
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: Annotated[tuple[Endpoint, ...], BeforeValidator(_nothing_is_empty)] = ()
    ports: Annotated[tuple[Port, ...], BeforeValidator(_nothing_is_empty)] = ()


class SliceList(_Object):
    metadata: Metadata
    items: Annotated[tuple[Slice, ...], BeforeValidator(_nothing_is_empty)] = ()


class Event(_Object):
    """One line of a watch; what `object` is depends on the type."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, object]


class Versioned(_Object):
    """A watch's BOOKMARK."""

    metadata: Metadata


class Status(_Object):
    """A watch's ERROR."""

    code: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The replicas' root URLs, and the ports of slices that have none of the wanted name or number."""

    urls: frozenset[str]
    other_ports: frozenset[str]


def replicas(slices: Iterable[Slice], port: int | str) -> Found:
    """The replicas that a Service's slices hold, each once, at the slice's port of that number or name.

    A pod of a dual-stack Service stands in an IPv4 and an IPv6 slice; it is taken by its IPv4 address alone.
    """
    known = list(slices)
    by_ipv4 = {uid for part in known if part.address_type == "IPv4" for uid in _pods(part)}
    urls: set[str] = set()
    other_ports: set[str] = set()
    for part in known:
        number = _number(part.ports, port)
        if number is None:
            other_ports.update(f"{p.name or '(no name)'}={p.port}" for p in part.ports)
            continue
        for endpoint in part.endpoints:
            if not endpoint.usable or not endpoint.addresses:
                continue
            if part.address_type == "IPv6" and endpoint.target_ref and endpoint.target_ref.uid in by_ipv4:
                continue
            # Several addresses are one endpoint's; Kubernetes asks to use the first.
            host = endpoint.addresses[0]
            urls.add(f"http://[{host}]:{number}" if part.address_type == "IPv6" else f"http://{host}:{number}")
    return Found(frozenset(urls), frozenset(other_ports))


def _pods(part: Slice) -> Iterator[str]:
    return (e.target_ref.uid for e in part.endpoints if e.target_ref and e.target_ref.uid)


def _number(ports: tuple[Port, ...], wanted: int | str) -> int | None:
    for port in ports:
        if port.port and port.protocol in (None, "TCP") and str(wanted) in (port.name, str(port.port)):
            return port.port
    return None
