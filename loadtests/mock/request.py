"""Reads requests of vLLM's APIs into one form, in which every word is a token."""

import re
from dataclasses import dataclass
from zlib import crc32

Json = dict[str, object]
Words = tuple[str, ...]

_DEFAULT_MAX_TOKENS = 16
# Answers say w0, w1, …; a prompt may be given as ids, which become t<ID>.
_NUMBERED = re.compile(r"([wt])(\d{1,9})")
_FIRST_ANSWER_ID = 1000
_FIRST_WORD_ID = 100_000
_WORD_IDS = 100_000


class BadRequestError(ValueError):
    """The request cannot be answered; vLLM would say 400."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: Json
    named: bool
    """The request named this function, rather than asking for any."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request for an answer wants, whatever the API it came by."""

    model: str | None
    prompts: tuple[Words, ...]
    """One, but for completions of several prompts."""
    max_tokens: int | None
    stream: bool
    include_usage: bool
    n: int
    stop: tuple[str, ...]
    logprobs: int | None
    """How many alternatives to each token; None where log probabilities are not wanted."""
    token_ids: bool
    prompt_logprobs: bool
    salt: str
    """Prompts share cached blocks only where they share this."""
    tag: str | None
    echo_sha: bool
    tool: Tool | None
    schema: Json | None
    """Of the JSON wanted; empty for any object."""


def token_id(word: str) -> int:
    """The id of a word of a prompt, below 200,000 but for a t<ID>; token N of an answer has 1000 + N."""
    numbered = _NUMBERED.fullmatch(word)
    if numbered is None:
        return _FIRST_WORD_ID + crc32(word.encode("utf-8", "replace")) % _WORD_IDS
    return int(numbered[2]) + (_FIRST_ANSWER_ID if numbered[1] == "w" else 0)


def answer_token_id(position: int) -> int:
    return _FIRST_ANSWER_ID + position


def word_of(token: int) -> str:
    """w0, w1, … for tokens of answers, t<ID> for all others: ids of prompts do not tell their words."""
    return f"w{token - _FIRST_ANSWER_ID}" if _FIRST_ANSWER_ID <= token < _FIRST_WORD_ID else f"t{token}"


def words(content: object) -> list[str]:
    """The words of a text, of a content part, of a message, or of a list of any of these."""
    if isinstance(content, str):
        return content.split()
    if isinstance(content, list):
        return [word for part in content for word in words(part)]
    if isinstance(content, dict):
        return words(content.get("text") or content.get("content"))
    return []


def prompts(value: object) -> tuple[Words, ...]:
    """Of a text, a list of texts, a list of token ids, or a list of such lists."""
    if not isinstance(value, list):
        return (tuple(words(value)),)
    if all(isinstance(item, int) for item in value):
        return (tuple(f"t{item}" for item in value),)
    return tuple(prompt for item in value for prompt in prompts(item))


def whole(request: Json, name: str, default: int | None = None) -> int | None:
    """A whole number of the request. Raises BadRequestError where it is something else."""
    value = request.get(name)
    if value is None:
        return default
    if not isinstance(value, int):
        raise BadRequestError(f"{name} must be an integer.")
    return value


def read_chat(request: Json) -> Ask:
    top = whole(request, "top_logprobs", 0)
    return _ask(
        request,
        (tuple(words(request.get("messages"))),),
        max_tokens=whole(request, "max_completion_tokens", whole(request, "max_tokens")),
        logprobs=top if request.get("logprobs") else None,
        tool=_tool(request),
        schema=_schema(request.get("response_format")),
    )


def read_completion(request: Json) -> Ask:
    return _ask(
        request,
        prompts(request.get("prompt")),
        max_tokens=whole(request, "max_tokens"),
        logprobs=whole(request, "logprobs"),
        schema=_schema(request.get("response_format")),
    )


def read_responses(request: Json) -> Ask:
    text = request.get("text")
    return _ask(
        request,
        ((*words(request.get("instructions")), *words(request.get("input"))),),
        max_tokens=whole(request, "max_output_tokens"),
        schema=_schema(text.get("format")) if isinstance(text, dict) else None,
    )


def read_messages(request: Json) -> Ask:
    return _ask(
        request,
        ((*words(request.get("system")), *words(request.get("messages"))),),
        max_tokens=whole(request, "max_tokens"),
        stop=request.get("stop_sequences"),
    )


def _ask(
    request: Json,
    prompts: tuple[Words, ...],
    *,
    max_tokens: int | None,
    stop: object = None,
    logprobs: int | None = None,
    tool: Tool | None = None,
    schema: Json | None = None,
) -> Ask:
    options = request.get("stream_options")
    stop = stop or request.get("stop") or ()
    model, salt = request.get("model"), request.get("cache_salt")
    return Ask(
        model=model if isinstance(model, str) else None,
        prompts=prompts,
        max_tokens=max_tokens,
        stream=bool(request.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        n=whole(request, "n") or 1,
        stop=(stop,) if isinstance(stop, str) else tuple(map(str, stop)) if isinstance(stop, list) else (),
        logprobs=logprobs,
        token_ids=bool(request.get("return_token_ids")),
        prompt_logprobs=bool(request.get("prompt_logprobs")),
        salt=salt if isinstance(salt, str) else "",
        tag=_tag(request),
        echo_sha=bool(request.get("x_echo_sha")),
        tool=tool,
        schema=schema,
    )


def _tag(request: Json) -> str | None:
    metadata = request.get("metadata")
    tag = metadata.get("tag") if isinstance(metadata, dict) else None
    tag = tag or request.get("user")
    return tag if isinstance(tag, str) else None


def _tool(request: Json) -> Tool | None:
    """The function to call, where the request insists on a call."""
    tools, choice = request.get("tools"), request.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice in (None, "auto", "none"):
        return None
    functions = [
        tool["function"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    named = isinstance(choice, dict)
    name = _inside(choice, "function", "name") if named else functions[0].get("name") if functions else None
    for function in functions:
        if function.get("name") == name:
            return Tool(str(name), function.get("parameters") or {}, named)
    raise BadRequestError("tool_choice names no function of tools.")


def _schema(response_format: object) -> Json | None:
    """The schema in chat's `response_format` or in responses' `text.format`."""
    kind = _inside(response_format, "type")
    if kind not in ("json_object", "json_schema"):
        return None
    schema = _inside(response_format, "json_schema", "schema") or _inside(response_format, "schema")
    return schema if isinstance(schema, dict) else {}


def _inside(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def words_to_say(ask: Ask) -> int:
    """How long an answer of words is: as long as it may be."""
    return _DEFAULT_MAX_TOKENS if ask.max_tokens is None else ask.max_tokens
