"""YAML text read into plain values, with the line on which each field stands.

A plain scalar means what YAML 1.2's core schema says, so that `auth: off` is the word and `1:30` no number; pydantic
still takes `yes` and `off` where a field is a boolean. Aliases and tags are refused: settings need neither, and a few
aliases can stand for gigabytes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml  # type: ignore[import-untyped]
from pydantic import JsonValue

from router.settings.fields import Fault, FieldPath

# Both give the same events; libyaml's is some fifteen times as fast and comes with every wheel of PyYAML.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

_MAX_DEPTH = 32
_MAX_DIGITS = 100
_INTEGER = re.compile(r"[-+]?[0-9]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(slots=True)
class Document:
    """A file's values, the line (from 1) of each field, and what is wrong with the text itself."""

    value: JsonValue = None
    lines: dict[FieldPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def parse(source: str, text: str) -> Document:
    """Read one YAML document; never raises. `source` is how faults call the file."""
    return _Parser(source, text).document


def plain_scalar(text: str) -> JsonValue:
    """What an unquoted scalar means: null, a boolean, a number, or else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if infinity := _INFINITY.fullmatch(text):
        return float(f"{infinity[1]}inf")
    return text


class _Stop(Exception):
    """The rest of the text cannot be read; the fault is in the document."""


class _Parser:
    def __init__(self, source: str, text: str) -> None:
        self.document = Document()
        self._source = source
        self._events = self._read(text)
        try:
            self._whole()
        except _Stop:
            self.document.value = None

    def _whole(self) -> None:
        next(self._events)  # the stream's start
        event = next(self._events)
        if not isinstance(event, yaml.DocumentStartEvent):
            return
        event = next(self._events)
        self.document.value = self._value(event, ())
        next(self._events)  # the document's end
        event = next(self._events)
        if isinstance(event, yaml.DocumentStartEvent):
            self._fault(event, (), "a second document starts here; keep one in a file")

    def _value(self, event: yaml.Event, path: FieldPath) -> JsonValue:
        self.document.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            self._fault(event, path, f"aliases such as *{event.anchor} are not read; write the value out")
            return None
        if event.tag is not None:
            self._fault(event, path, "tags are not read; write the value without its `!`")
        if len(path) > _MAX_DEPTH:
            self._fault(event, path[:3], "is nested too deeply")
            raise _Stop
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(path)
        text: str = event.value
        return text if event.style else plain_scalar(text)

    def _mapping(self, path: FieldPath) -> dict[str, JsonValue]:
        values: dict[str, JsonValue] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fault(event, path, "a field's name is no plain text; give each field as NAME: VALUE")
                raise _Stop
            name: str = event.value
            inner = (*path, name)
            twice = name in values
            if twice:
                first = self.document.lines[inner]
                self._fault(event, inner, f"is given twice, first on line {first}; keep one")
            self.document.lines.setdefault(inner, event.start_mark.line + 1)
            value = self._value(next(self._events), inner)
            if not twice:
                values[name] = value
        return values

    def _list(self, path: FieldPath) -> list[JsonValue]:
        values: list[JsonValue] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*path, len(values))))
        return values

    def _read(self, text: str) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            reason = ", ".join(part for part in (error.context, error.problem) if part)
            self._unreadable(mark.line + 1 if mark else None, reason)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
            self._unreadable(line, str(error.reason))
        except (ValueError, OverflowError):
            # PyYAML's own scanner hands "\UFFFFFFFF" to chr().
            self._unreadable(None, "an escape names no character")

    def _unreadable(self, line: int | None, reason: str) -> None:
        self.document.faults.append(Fault(self._source, line, (), f"is no YAML: {reason}"))
        raise _Stop

    def _fault(self, event: yaml.Event, path: FieldPath, message: str) -> None:
        self.document.faults.append(Fault(self._source, event.start_mark.line + 1, path, message))
