"""Environment variables over the file: `TWINSPEED_ROUTER__LISTEN__PORT=9000`, and `${ENV:NAME}` inside its texts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from router.config import RouterConfig
from router.settings.document import plain_scalar
from router.settings.fields import (
    Fault,
    FieldPath,
    FieldType,
    child,
    is_group,
    is_list,
    is_optional,
    is_text,
    names_in,
    show,
)

PREFIX = "TWINSPEED_ROUTER__"

_REFERENCE = re.compile(r"\$\{ENV:([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(slots=True)
class Overlay:
    """What the environment gave: which variable set a field, what must not be shown of it, and what is wrong."""

    set_by: dict[FieldPath, str] = field(default_factory=dict)
    secrets: dict[FieldPath, list[tuple[str, str]]] = field(default_factory=dict)
    """By field: texts from the environment, each with what to show in its place."""
    faults: list[Fault] = field(default_factory=list)

    def redact(self, path: FieldPath, message: str) -> str:
        """`message`, which speaks of the field at `path` or of one inside it, without texts from the environment."""
        hidden = [
            pair for place, pairs in self.secrets.items() if place[: len(path)] == path for pair in pairs if pair[0]
        ]
        for text, shown in sorted(hidden, key=lambda pair: -len(pair[0])):
            message = message.replace(text, shown).replace(repr(text)[1:-1], shown)
        return message


def overlay(
    source: str, values: dict[str, JsonValue], lines: Mapping[FieldPath, int], environ: Mapping[str, str]
) -> Overlay:
    """Lay the variables over `values`, in place, then replace each `${ENV:NAME}` in its texts.

    Never raises: a variable that names no field, and a name that is not set, are among the faults.
    """
    result = Overlay()
    for name in sorted(environ):
        if name.startswith(PREFIX):
            _override(name, environ[name], values, result)

    def expand(value: JsonValue, path: FieldPath) -> JsonValue:
        if isinstance(value, dict):
            return {name: expand(inner, (*path, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [expand(inner, (*path, index)) for index, inner in enumerate(value)]
        if not isinstance(value, str) or "${ENV:" not in value:
            return value
        place = (result.set_by[path], None) if path in result.set_by else (source, lines.get(path))

        def text_of(reference: re.Match[str]) -> str:
            text = environ.get(reference[1])
            if text is None:
                result.faults.append(Fault(*place, path, f"the environment variable {reference[1]} is not set"))
                return reference[0]
            secrets.append((text, reference[0]))
            return text

        secrets = result.secrets.setdefault(path, [])
        if "${ENV:" in _REFERENCE.sub("", value):
            result.faults.append(Fault(*place, path, "`${ENV:` starts no reference; write ${ENV:NAME}"))
        expanded = _REFERENCE.sub(text_of, value)
        # Whole as well, because the quotes around a text change how what it holds is escaped.
        secrets.append((expanded, value))
        return expanded

    for name, value in values.items():
        values[name] = expand(value, (name,))
    return result


def _override(name: str, text: str, values: dict[str, JsonValue], result: Overlay) -> None:
    try:
        path, found = _named_by(name)
        value = _read(text, found)
        _put(values, path, value)
    except _Refused as refused:
        result.faults.append(Fault(name, None, (), str(refused)))
        return
    result.set_by[path] = name
    if isinstance(value, str):
        result.secrets.setdefault(path, []).append((value, f"${name}"))


class _Refused(ValueError):
    """A variable that sets nothing; the message says why."""


def _named_by(name: str) -> tuple[FieldPath, FieldType]:
    path: FieldPath = ()
    found: FieldType = RouterConfig
    for word in name.removeprefix(PREFIX).split("__"):
        part: str | int = int(word) if is_list(found) and re.fullmatch(r"[0-9]{1,9}", word) else word.lower()
        inner = child(found, part) if word else None
        if inner is None:
            holds = "items by number, from 0" if is_list(found) else ", ".join(names_in(found)) or "no other fields"
            raise _Refused(f"names no field: {show(path) or 'the whole'} holds {holds}")
        path, found = (*path, part), inner
    if is_group(found):
        raise _Refused(f"{show(path)} is no single value; name a field in it, such as {name}__FIELD")
    return path, found


def _read(text: str, kind: FieldType) -> JsonValue:
    if not is_text(kind):
        return plain_scalar(text)
    return None if text == "null" and is_optional(kind) else text


def _put(values: dict[str, JsonValue], path: FieldPath, value: JsonValue) -> None:
    """Set one field, and make the groups on the way to it that the file left out."""
    place: JsonValue = values
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(place, list) and isinstance(part, int):
            if part >= len(place):
                raise _Refused(f"there is no {show(path[: depth + 1])}: the list has {len(place)} items, from 0")
            if last:
                place[part] = value
            place = place[part]
        elif isinstance(place, dict) and isinstance(part, str):
            if last:
                place[part] = value
            elif place.get(part) is None:
                place[part] = [] if isinstance(path[depth + 1], int) else {}
            place = place[part]
        else:
            raise _Refused(f"cannot be laid over the file, where {show(path[:depth])} is another kind of value")
