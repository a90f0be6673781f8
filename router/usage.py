"""Reads how many tokens an answer took from its last bytes, in the forms that vLLM writes."""

import json

from router.record import Usage

_KEY = b'"usage":'
# An answer's end: more than any usage object and what may follow it.
_TAIL = 64 * 1024
_JSON = json.JSONDecoder()
# Bytes of JSON text to a token, where nobody has counted: English text in common vocabularies.
_BYTES_PER_TOKEN = 4


def parse_usage(data: bytes) -> Usage | None:
    """The last usage object in the bytes of a JSON answer or of an event stream.

    Inside a JSON string every quote is escaped, so the key cannot be found in text that a model or a client wrote.
    """
    end = len(data)
    while (at := data.rfind(_KEY, 0, end)) >= 0:
        end = at
        text = data[at + len(_KEY) : at + len(_KEY) + 4096].decode("utf-8", "ignore").lstrip()
        try:
            value, _ = _JSON.raw_decode(text)
        except ValueError:
            continue
        usage = _from_object(value)
        if usage is not None:
            return usage
    return None


def _from_object(value: object) -> Usage | None:
    """From the usage object of chat, completions and embeddings, of responses, or of Anthropic's messages."""
    if not isinstance(value, dict):
        return None
    prompt = _count(value, "prompt_tokens", "input_tokens")
    if prompt is None:
        return None
    # Anthropic's input tokens are only those that no cache had and none was given.
    read, written = (_count(value, f"cache_{what}_input_tokens") or 0 for what in ("read", "creation"))
    prompt += read + written
    details = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else read
    completion = _count(value, "completion_tokens", "output_tokens") or 0
    return Usage(prompt, completion, min(cached or 0, prompt))


def _count(value: dict[str, object], *names: str) -> int | None:
    for name in names:
        count = value.get(name)
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None


class UsageTap:
    """Remembers the end of a stream, and counts what stands in for a count when the stream breaks off.

    Called for every chunk, so all work is put off until somebody asks, or too much is held.
    """

    __slots__ = ("_events", "_held", "_tail")

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._held = 0
        self._events = 0

    def add(self, data: bytes) -> None:
        self._tail.append(data)
        self._held += len(data)
        if self._held > 2 * _TAIL:
            self._trim()

    @property
    def at_boundary(self) -> bool:
        """Whether the stream so far ends with a whole event."""
        return not self._tail or self._tail[-1].endswith((b"\n\n", b"\r\n\r\n"))

    def usage(self) -> Usage | None:
        """As the engine counted it; None where its count has not come."""
        return parse_usage(b"".join(self._tail))

    def estimate(self, prompt: int) -> Usage:
        """For a stream that was broken off: a token an event, at least, for `prompt` tokens of prompt."""
        return Usage(prompt, self._events + b"".join(self._tail).count(b"\n\n"))

    def _trim(self) -> None:
        text = b"".join(self._tail)
        self._events += text.count(b"\n\n", 0, len(text) - _TAIL)
        self._tail = [text[-_TAIL:]]
        self._held = _TAIL


def estimate_tokens(text_bytes: int) -> int:
    """Tokens in so many bytes of text, roughly."""
    return text_bytes // _BYTES_PER_TOKEN + 1
