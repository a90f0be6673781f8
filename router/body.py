"""Reads a JSON request once, and edits the `model` value in its bytes; every other byte stays as it came."""

import json
import re
from dataclasses import dataclass
from typing import Never

_OPEN = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_CLOSE = re.compile(r"[ \t\n\r]*\}[ \t\n\r]*\Z")


class BodyError(ValueError):
    """The body is not a JSON object with a string `model`; the message says why."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A validated request: its bytes, its top-level members, and where each `model` value stands in the bytes."""

    raw: bytes
    model: str
    members: dict[str, object]
    spans: tuple[tuple[int, int], ...]

    def with_model(self, model: str, member: bytes = b"") -> bytes:
        """The request as it came, with `model` as the value of every top-level `model` key.

        Every one, because parsers differ on which of two equal keys counts. `member` is one more member in JSON, such
        as `"a":1`, put last, where it takes precedence over an earlier one of its name.
        """
        value = json.dumps(model).encode()
        pieces: list[bytes] = []
        position = 0
        for start, end in self.spans:
            pieces += (self.raw[position:start], value)
            position = end
        if member:
            end = self.raw.rindex(b"}")
            pieces += (self.raw[position:end], b",", member)
            position = end
        pieces.append(self.raw[position:])
        return b"".join(pieces)


def parse_body(body: bytes) -> RequestBody:
    """Raises BodyError for what is not UTF-8, not JSON (RFC 8259), not an object, or has no string `model`.

    Of several top-level `model` keys the last counts, as in `json.loads`.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"The request body is not UTF-8: {error.reason} at byte {error.start}.") from None
    try:
        members, found = _members(text)
    except json.JSONDecodeError as error:
        raise BodyError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise BodyError("The request body is nested too deeply.") from None
    except ValueError as error:
        raise BodyError(f"The request body is not valid JSON: {error}.") from None
    if not found:
        raise BodyError("The request body has no `model`.")
    model = members["model"]
    if not isinstance(model, str):
        raise BodyError("`model` must be a string.")
    if not text.isascii():
        found = [(len(text[:start].encode()), len(text[:end].encode())) for start, end in found]
    return RequestBody(body, model, members, tuple(found))


def _members(text: str) -> tuple[dict[str, object], list[tuple[int, int]]]:
    """The top-level members, and start and end of each `model` value.

    Only the members of the outermost object are walked here; json's C scanner reads each value whole and
    says where it ends, so validation and the search are one pass, whatever the values hold.
    """
    opened = _OPEN.match(text)
    if not opened:
        reason = "expected a JSON object, without a byte order mark"
        raise json.JSONDecodeError(reason, text, 0)
    members: dict[str, object] = {}
    found: list[tuple[int, int]] = []
    position = opened.end()
    if _CLOSE.match(text, position):
        return members, found
    while True:
        if not text.startswith('"', position):
            raise json.JSONDecodeError("expected a key in double quotes", text, position)
        key, position = _JSON.raw_decode(text, position)
        colon = _COLON.match(text, position)
        if not colon:
            raise json.JSONDecodeError("expected ':'", text, position)
        start = colon.end()
        members[key], position = _JSON.raw_decode(text, start)
        if key == "model":
            found.append((start, position))
        comma = _COMMA.match(text, position)
        if comma:
            position = comma.end()
        elif _CLOSE.match(text, position):
            return members, found
        else:
            raise json.JSONDecodeError("expected ',' or the end of the object", text, position)


def _refuse_constant(name: str) -> Never:
    # Python's parser takes NaN and Infinity, which are not JSON.
    raise ValueError(f"{name} is not a JSON number")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
