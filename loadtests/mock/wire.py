"""JSON and server-sent events, written as vLLM writes them: compact and in UTF-8."""

import json

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Stands for the text in the template of an event; no JSON writes it otherwise.
_HOLE = "\0"
_HOLE_JSON = b'"\\u0000"'

DONE = b"data: [DONE]\n\n"


def to_json(data: object) -> bytes:
    return _ENCODE(data).encode("utf-8", "replace")


def event(data: object, name: str | None = None) -> bytes:
    """One event, with its name where the API names them."""
    return (f"event: {name}\ndata: ".encode() if name else b"data: ") + to_json(data) + b"\n\n"


class EventTemplate:
    """Events that differ in one text, made in a fraction of the time that encoding each takes."""

    HOLE = _HOLE

    def __init__(self, data: object) -> None:
        """`data` has HOLE where the text goes."""
        self._before, self._after = event(data).split(_HOLE_JSON)

    def fill(self, text: str) -> bytes:
        return self._before + to_json(text) + self._after
