"""Decides what the mock says to a request, token by token; how it is written is the API's matter."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from loadtests.mock.request import Ask, Json, token_id, words_to_say
from loadtests.mock.wire import to_json


@dataclass(frozen=True, slots=True)
class Prompt:
    """`cached` of the `tokens` were known from earlier prompts; `ids` holds a tuple for each prompt."""

    tokens: int
    cached: int
    ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """`pieces` are the tokens of each of `choices` equal answers: text, or the arguments of a call of `tool`.

    Equal replies are written alike, whatever the request.
    """

    model: str
    prompt: Prompt
    pieces: tuple[str, ...]
    tokens_per_chunk: int
    finish: str
    """length, stop or tool_calls, as chat says it."""
    stop_reason: str | None
    """The stop string that ended the answer."""
    choices: int
    tool: str | None
    logprobs: int | None
    token_ids: bool
    prompt_logprobs: bool
    include_usage: bool

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def output_tokens(self) -> int:
        return len(self.pieces) * self.choices

    def chunks(self) -> list[tuple[int, tuple[str, ...]]]:
        """The tokens that each step of the engine adds, with the position of the first of them."""
        size = self.tokens_per_chunk
        return [(start, self.pieces[start : start + size]) for start in range(0, len(self.pieces), size)]


def compose(ask: Ask, body: bytes, model: str, cached: int, tokens_per_chunk: int) -> Reply:
    """The answer to `ask`, which came in `body`; `cached` tokens of its prompts were known."""
    if ask.echo_sha:
        # Whole, whatever its length: a part would prove nothing.
        pieces, finish, stop_reason = tuple(_slices(sha256(body).hexdigest(), 8)), "stop", None
    else:
        pieces, finish, stop_reason = _say(ask)
    return Reply(
        model=model,
        prompt=Prompt(
            tokens=sum(map(len, ask.prompts)),
            cached=cached,
            ids=tuple(tuple(map(token_id, prompt)) for prompt in ask.prompts)
            if ask.token_ids or ask.prompt_logprobs
            else (),
        ),
        pieces=pieces,
        tokens_per_chunk=tokens_per_chunk,
        finish=finish,
        stop_reason=stop_reason,
        choices=ask.n * len(ask.prompts),
        tool=None if ask.tool is None else ask.tool.name,
        logprobs=ask.logprobs,
        token_ids=ask.token_ids,
        prompt_logprobs=ask.prompt_logprobs,
        include_usage=ask.include_usage,
    )


def _say(ask: Ask) -> tuple[tuple[str, ...], str, str | None]:
    """Tokens, why they end, and the stop string that ended them."""
    if ask.tool is not None or ask.schema is not None:
        sample = _sample(ask.tool.parameters if ask.tool is not None else ask.schema or {})
        pieces = tuple(_slices(to_json(sample).decode(), 4))
        if ask.max_tokens is not None and len(pieces) > ask.max_tokens:
            return pieces[: ask.max_tokens], "length", None
        return pieces, "tool_calls" if ask.tool is not None and not ask.tool.named else "stop", None
    pieces = _words(words_to_say(ask))
    if ask.tag is not None and pieces:
        pieces = (f"[{ask.tag}] ", *pieces[1:])
    found = [(at, stop) for stop in ask.stop if (at := "".join(pieces).find(stop)) >= 0]
    if not found:
        return pieces, "length", None
    at, stop = min(found, key=lambda item: item[0] + len(item[1]))
    return _cut(pieces, at, at + len(stop)), "stop", stop


@lru_cache(maxsize=256)
def _words(count: int) -> tuple[str, ...]:
    return tuple(f"w{index} " for index in range(count))


def _cut(pieces: Sequence[str], at: int, seen: int) -> tuple[str, ...]:
    """The text before `at`, in as many tokens as it took to have `seen` characters."""
    kept: list[str] = []
    start = 0
    for piece in pieces:
        if start >= seen:
            break
        kept.append(piece[: max(0, at - start)])
        start += len(piece)
    return tuple(kept)


def _slices(text: str, size: int) -> list[str]:
    return re.findall(f"(?s).{{1,{size}}}", text)


def _sample(schema: Json) -> object:
    """A value that fits a simple schema: what it may be, by type and enum; an object has every property."""
    if not schema:
        return {"answer": "w0"}
    enum = schema.get("enum")
    if isinstance(enum, list) and enum:
        return enum[0]
    match schema.get("type"):
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            items = schema.get("items")
            return [_sample(items)] if isinstance(items, dict) and items else []
        case "object":
            properties = schema.get("properties")
            return {name: _sample(value) for name, value in properties.items()} if isinstance(properties, dict) else {}
        case _:
            return "w0"
