"""The answers of /v1/messages, Anthropic's API, in vLLM's form."""

from loadtests.mock.reply import Reply
from loadtests.mock.request import Json
from loadtests.mock.wire import event

_ID = "mock-1"


def message(reply: Reply) -> Json:
    return {
        "id": _ID,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": reply.text}],
        "model": reply.model,
        **_stop(reply),
        "usage": _usage(reply),
    }


def message_steps(reply: Reply) -> list[list[bytes]]:
    """The events of each step of the engine; the first and the last step have those around the text, too."""
    started = {**message(reply), "content": [], "stop_reason": None, "stop_sequence": None}
    # vLLM knows only at the end how much of the prompt was cached.
    started["usage"] = {"input_tokens": reply.prompt.tokens, "output_tokens": 0}
    head = [
        _named({"type": "message_start", "message": started}),
        _named({"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}),
    ]
    tail = [
        _named({"type": "content_block_stop", "index": 0}),
        _named({"type": "message_delta", "delta": _stop(reply), "usage": _usage(reply)}),
        _named({"type": "message_stop"}),
    ]
    steps = [
        [_named({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "".join(part)}, "index": 0})]
        for _, part in reply.chunks()
    ] or [[]]
    steps[0] = head + steps[0]
    steps[-1] = steps[-1] + tail
    return steps


def _named(data: Json) -> bytes:
    return event(data, str(data["type"]))


def _stop(reply: Reply) -> Json:
    if reply.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "stop_sequence" if reply.stop_reason else "end_turn", "stop_sequence": reply.stop_reason}


def _usage(reply: Reply) -> Json:
    """Anthropic counts the cached part of a prompt apart."""
    prompt = reply.prompt
    return {
        "input_tokens": prompt.tokens - prompt.cached,
        "output_tokens": reply.output_tokens,
        "cache_read_input_tokens": prompt.cached,
    }
