"""The settings file read, overlaid with the environment and checked: a RouterConfig, or every fault in its place."""

import difflib
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from router.config import RouterConfig
from router.settings.document import Document, parse
from router.settings.environment import Overlay, overlay
from router.settings.fields import Fault, FieldPath, FieldType, child, names_in, type_at
from twinspeed.errors import InputError
from twinspeed.files import human_bytes

MAX_BYTES = 1024 * 1024
_MAX_FAULTS = 100

_SAID_BETTER = {
    "missing": "is missing",
    "string_type": "should be text; put quotes around it",
    "dict_type": "should be a mapping, NAME: VALUE",
    "model_type": "should be a mapping, NAME: VALUE",
    "tuple_type": "should be a list, each item after a dash",
}


def load(path: Path, environ: Mapping[str, str]) -> RouterConfig:
    """The settings in the YAML file at `path`, with `environ` over them.

    Raises:
        InputError: every fault of the file and the variables, one a line: `FILE:LINE: FIELD: what is wrong`. No text
            from the environment is in it.
    """
    return check(path, read(path), environ)


def read(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        InputError: it cannot be read, is no regular file or is larger than MAX_BYTES.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: is no file; name the YAML file with the router's settings")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name the YAML file with the router's settings") from None
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: is larger than {human_bytes(MAX_BYTES)}, the most that settings may be")
    return content


def check(path: Path, content: bytes, environ: Mapping[str, str]) -> RouterConfig:
    """The settings in `content`, the bytes of the file at `path`. Raises as `load` does."""
    source = str(path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{source}:{line}: is not UTF-8: {error.reason}") from None
    document = parse(source, text)
    if document.faults:
        raise _refusal(document.faults)
    if not isinstance(document.value, dict):
        found = "is empty" if document.value is None else "is no mapping"
        raise InputError(f"{source}: {found}; expected the router's settings, each as NAME: VALUE")
    laid = overlay(source, document.value, document.lines, environ)
    try:
        config = RouterConfig.model_validate(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _refusal([*laid.faults, *_Invalid(source, document, laid).faults(details)]) from None
    if laid.faults:
        raise _refusal(laid.faults)
    return config


def _refusal(faults: Iterable[Fault]) -> InputError:
    lines = [str(fault) for fault in sorted(faults, key=lambda fault: (fault.line is None, fault.line or 0))]
    more = len(lines) - _MAX_FAULTS
    if more > 0:
        lines[_MAX_FAULTS:] = [f"… and {more} more"]
    return InputError("\n".join(lines))


@dataclass(frozen=True, slots=True)
class _Invalid:
    """Says pydantic's errors in the file's own terms."""

    source: str
    document: Document
    laid: Overlay

    def faults(self, details: list[ErrorDetails]) -> list[Fault]:
        # What a variable that is not set would have given makes the values around it wrong too.
        unset = {fault.path for fault in self.laid.faults}
        messages: dict[FieldPath, list[str]] = {}
        paths = [self._path(detail) for detail in details]
        for detail, path in zip(details, paths, strict=True):
            # A list counts as short too when it is its items that are wrong.
            if detail["type"] == "too_short" and any(path == other[: len(path)] != other for other in paths):
                continue
            if any(place[: len(path)] == path for place in unset if place):
                continue
            # A field that may be of several types gets a message for each.
            messages.setdefault(path, []).append(self.laid.redact(path, _message(detail, path)))
        return [self._fault(path, " or ".join(several)) for path, several in messages.items()]

    def _path(self, detail: ErrorDetails) -> FieldPath:
        """Where pydantic found it, without what it adds to tell a union's members and a mapping's keys apart."""
        path: FieldPath = ()
        found: FieldType = RouterConfig
        for part in detail["loc"]:
            inner = child(found, part)
            if part == "[key]" or inner is None:
                return (*path, part) if detail["type"] == "extra_forbidden" else path
            path, found = (*path, part), inner
        return path

    def _fault(self, path: FieldPath, message: str) -> Fault:
        if path in self.laid.set_by:
            return Fault(self.laid.set_by[path], None, path, message)
        near = path
        while near and near not in self.document.lines:
            near = near[:-1]
        return Fault(self.source, self.document.lines[near] if near else None, path, message)


def _message(detail: ErrorDetails, path: FieldPath) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = names_in(type_at(path[:-1]))
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        return (
            f"there is no such field; did you mean {close[0]}?"
            if close
            else f"there is no such field, only {', '.join(known)}"
        )
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    return _SAID_BETTER.get(kind) or detail["msg"].removeprefix("Input ")
