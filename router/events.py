"""The only edits that a stream ever gets, event by event: its usage left out, or its cost put in."""

import json
import re
from collections.abc import Callable

from router.record import Usage
from router.usage import parse_usage

_USAGE = b'"usage":'
_DONE = b"data: [DONE]"
_BOUNDARY = re.compile(rb"\n\n|\r\n\r\n")
_WHOLE = (b"\n\n", b"\r\n\r\n")


class StreamEditor:
    """Leaves out the event that reports usage, where the router asked for it and the client did not; and puts what
    `comment` makes of the usage before `[DONE]`, where the client wants it. Every other byte passes.
    """

    __slots__ = ("_comment", "_cut", "_hide_usage", "_usage")

    def __init__(self, *, hide_usage: bool, comment: Callable[[Usage], bytes] | None) -> None:
        self._hide_usage = hide_usage
        self._comment = comment
        self._cut = b""
        self._usage: Usage | None = None

    def edit(self, data: bytes) -> bytes:
        """What can be passed on; the beginning of an event that is not complete yet is kept."""
        if not self._cut and _USAGE not in data and data.endswith(_WHOLE) and (not self._comment or _DONE not in data):
            return data
        text = self._cut + data
        kept: list[bytes] = []
        position = 0
        for boundary in _BOUNDARY.finditer(text):
            event = text[position : boundary.end()]
            position = boundary.end()
            if _USAGE in event:
                self._usage = parse_usage(event) or self._usage
                if self._hide_usage and _is_usage_alone(event):
                    continue
            elif self._comment is not None and self._usage is not None and event.startswith(_DONE):
                kept.append(self._comment(self._usage))
            kept.append(event)
        self._cut = text[position:]
        return b"".join(kept)

    def rest(self) -> bytes:
        """What is kept, once nothing more will come."""
        rest, self._cut = self._cut, b""
        return rest


def _is_usage_alone(event: bytes) -> bool:
    """Whether an event holds usage and no choice: what `include_usage` adds to a stream."""
    try:
        data = json.loads(event.partition(b"data:")[2])
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("choices") == [] and isinstance(data.get("usage"), dict)
