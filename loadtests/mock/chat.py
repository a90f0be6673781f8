"""The answers of /v1/chat/completions and /v1/completions, in vLLM's form.

Unlike vLLM's, a stream's first event has the role together with the first token, and its finish is an event of its own.
"""

from functools import lru_cache

from loadtests.mock.reply import Reply
from loadtests.mock.request import Json, answer_token_id, word_of
from loadtests.mock.wire import DONE, EventTemplate, event

_ID = "mock-1"
_CALL_ID = "chatcmpl-tool-mock-1"
# Every token is as probable as this; each alternative is less so by one.
_LOGPROB = -0.25


def chat(reply: Reply) -> Json:
    choices = [
        {
            "index": index,
            "message": _message(reply),
            "logprobs": _chat_logprobs(reply, reply.pieces),
            "finish_reason": reply.finish,
            "stop_reason": reply.stop_reason,
            "token_ids": _token_ids(reply, 0, len(reply.pieces)),
        }
        for index in range(reply.choices)
    ]
    prompt_ids = reply.prompt.ids[0] if reply.token_ids else None
    return {**_base("chat.completion", reply.model), "choices": choices, "usage": usage(reply), **_ids(prompt_ids)}


def completion(reply: Reply) -> Json:
    choices: list[Json] = [
        {
            "index": index,
            "text": reply.text,
            "logprobs": _completion_logprobs(reply, reply.pieces, 0),
            "finish_reason": reply.finish,
            "stop_reason": reply.stop_reason,
            "token_ids": _token_ids(reply, 0, len(reply.pieces)),
            "prompt_logprobs": _prompt_logprobs(reply, index),
            **_ids(_prompt_ids(reply, index)),
        }
        for index in range(reply.choices)
    ]
    return {**_base("text_completion", reply.model), "choices": choices, "usage": usage(reply)}


def chat_steps(reply: Reply) -> list[list[bytes]]:
    """The events of each step of the engine: one for each choice, and in the last the finish, usage and [DONE]."""
    steps: list[list[bytes]] = []
    base = _base("chat.completion.chunk", reply.model)
    plain = _is_plain(reply)
    for start, part in reply.chunks():
        first = start == 0
        if plain:
            steps.append([_chat_template(reply.model, first).fill("".join(part))])
            continue
        choices: list[Json] = [
            {
                "index": index,
                "delta": _delta(reply, "".join(part), first=first),
                "logprobs": _chat_logprobs(reply, part),
                "finish_reason": None,
                "token_ids": _token_ids(reply, start, len(part)),
            }
            for index in range(reply.choices)
        ]
        ids = _ids(reply.prompt.ids[0] if first and reply.token_ids else None)
        steps.append([event({**base, "choices": [choice], **ids}) for choice in choices])
    ends = [
        {
            "index": index,
            "delta": {"content": ""},
            "logprobs": None,
            "finish_reason": reply.finish,
            "stop_reason": reply.stop_reason,
            "token_ids": None,
        }
        for index in range(reply.choices)
    ]
    return _ended(steps, [{**base, "choices": [end]} for end in ends], base, reply)


def completion_steps(reply: Reply) -> list[list[bytes]]:
    """As `chat_steps`."""
    steps: list[list[bytes]] = []
    base = _base("text_completion", reply.model)
    plain = _is_plain(reply)
    offset = 0
    for start, part in reply.chunks():
        text = "".join(part)
        if plain:
            steps.append([_completion_template(reply.model).fill(text)])
            continue
        choices: list[Json] = [
            {
                "index": index,
                "text": text,
                "logprobs": _completion_logprobs(reply, part, offset),
                "finish_reason": None,
                "stop_reason": None,
                "token_ids": _token_ids(reply, start, len(part)),
                **_ids(_prompt_ids(reply, index) if start == 0 else None),
            }
            for index in range(reply.choices)
        ]
        steps.append([event({**base, "choices": [choice]}) for choice in choices])
        offset += len(text)
    ends = [
        {"index": index, "text": "", "logprobs": None, "finish_reason": reply.finish, "stop_reason": reply.stop_reason}
        for index in range(reply.choices)
    ]
    return _ended(steps, [{**base, "choices": [end]} for end in ends], base, reply)


def usage(reply: Reply) -> Json:
    prompt, completion = reply.prompt, reply.output_tokens
    return {
        "prompt_tokens": prompt.tokens,
        "total_tokens": prompt.tokens + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": prompt.cached},
    }


def _ended(steps: list[list[bytes]], ends: list[Json], base: Json, reply: Reply) -> list[list[bytes]]:
    last = [event(end) for end in ends]
    if reply.include_usage:
        last.append(event({**base, "choices": [], "usage": usage(reply)}))
    last.append(DONE)
    if not steps:
        return [last]
    steps[-1] += last
    return steps


def _base(kind: str, model: str) -> Json:
    return {"id": _ID, "object": kind, "created": 0, "model": model}


def _is_plain(reply: Reply) -> bool:
    return reply.choices == 1 and reply.tool is None and reply.logprobs is None and not reply.token_ids


@lru_cache(maxsize=64)
def _chat_template(model: str, first: bool) -> EventTemplate:
    delta: Json = {"role": "assistant"} if first else {}
    delta["content"] = EventTemplate.HOLE
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
    return EventTemplate({**_base("chat.completion.chunk", model), "choices": [choice]})


@lru_cache(maxsize=64)
def _completion_template(model: str) -> EventTemplate:
    choice = {"index": 0, "text": EventTemplate.HOLE, "logprobs": None, "finish_reason": None, "stop_reason": None}
    return EventTemplate({**_base("text_completion", model), "choices": [{**choice, "token_ids": None}]})


def _message(reply: Reply) -> Json:
    content = reply.text if reply.tool is None else ""
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if reply.tool is not None:
        function = {"name": reply.tool, "arguments": reply.text}
        message["tool_calls"] = [{"id": _CALL_ID, "type": "function", "function": function}]
    return {**message, "reasoning": None}


def _delta(reply: Reply, text: str, *, first: bool) -> Json:
    role: Json = {"role": "assistant"} if first else {}
    if reply.tool is None:
        return {**role, "content": text}
    name: Json = {"id": _CALL_ID, "type": "function"} if first else {}
    function = {"name": reply.tool, "arguments": text} if first else {"arguments": text}
    return {**role, "tool_calls": [{**name, "index": 0, "function": function}]}


def _ids(prompt_ids: tuple[int, ...] | None) -> Json:
    return {} if prompt_ids is None else {"prompt_token_ids": prompt_ids}


def _prompt_ids(reply: Reply, choice: int) -> tuple[int, ...] | None:
    return _prompt_of(reply, choice) if reply.token_ids else None


def _prompt_of(reply: Reply, choice: int) -> tuple[int, ...]:
    return reply.prompt.ids[choice * len(reply.prompt.ids) // reply.choices]


def _token_ids(reply: Reply, start: int, count: int) -> list[int] | None:
    return [answer_token_id(start + offset) for offset in range(count)] if reply.token_ids else None


def _chat_logprobs(reply: Reply, part: tuple[str, ...]) -> Json | None:
    if reply.logprobs is None:
        return None
    return {
        "content": [
            {**_logprob(token, 0), "top_logprobs": [_logprob(token, rank) for rank in range(reply.logprobs)]}
            for token in part
        ]
    }


def _logprob(token: str, rank: int) -> Json:
    token = f"{token}~{rank}" if rank else token
    return {"token": token, "logprob": _LOGPROB - rank, "bytes": list(token.encode())}


def _completion_logprobs(reply: Reply, part: tuple[str, ...], offset: int) -> Json | None:
    if reply.logprobs is None:
        return None
    offsets = [offset + sum(map(len, part[:index])) for index in range(len(part))]
    return {
        "text_offset": offsets,
        "token_logprobs": [_LOGPROB for _ in part],
        "tokens": list(part),
        "top_logprobs": [{token: _LOGPROB} for token in part],
    }


def _prompt_logprobs(reply: Reply, choice: int) -> list[Json | None] | None:
    """vLLM's `prompt_logprobs`; every token is the most probable one."""
    if not reply.prompt_logprobs:
        return None
    positions: list[Json | None] = [None]
    for token in _prompt_of(reply, choice)[1:]:
        positions.append({str(token): {"logprob": _LOGPROB, "rank": 1, "decoded_token": word_of(token)}})
    return positions
