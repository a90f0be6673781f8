"""The answers of /v1/responses, in vLLM's form."""

from loadtests.mock.reply import Reply
from loadtests.mock.request import Json
from loadtests.mock.wire import event

_ID = "resp_mock-1"
_ITEM = "msg_mock-1"
_IN_ITEM: Json = {"item_id": _ITEM, "output_index": 0, "content_index": 0}


def response(reply: Reply) -> Json:
    incomplete = reply.finish == "length"
    return _response(reply, "incomplete" if incomplete else "completed", [_item(reply.text)], _usage(reply))


def response_steps(reply: Reply) -> list[list[bytes]]:
    """The events of each step of the engine; the first and the last step have those around the text, too."""
    started = _response(reply, "in_progress", [], None)
    item: Json = {"id": _ITEM, "content": [], "role": "assistant", "status": "in_progress", "type": "message"}
    head: list[Json] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **_IN_ITEM, "part": _part("")},
    ]
    tail: list[Json] = [
        {"type": "response.output_text.done", **_IN_ITEM, "text": reply.text, "logprobs": []},
        {"type": "response.content_part.done", **_IN_ITEM, "part": _part(reply.text)},
        {"type": "response.output_item.done", "output_index": 0, "item": _item(reply.text)},
        {"type": "response.completed", "response": response(reply)},
    ]
    steps: list[list[Json]] = [
        [{"type": "response.output_text.delta", **_IN_ITEM, "delta": "".join(part), "logprobs": []}]
        for _, part in reply.chunks()
    ]
    steps = steps or [[]]
    steps[0] = head + steps[0]
    steps[-1] = steps[-1] + tail
    number = -1
    written: list[list[bytes]] = []
    for step in steps:
        written.append([])
        for data in step:
            number += 1
            written[-1].append(event({**data, "sequence_number": number}, str(data["type"])))
    return written


def _item(text: str) -> Json:
    return {"id": _ITEM, "content": [_part(text)], "role": "assistant", "status": "completed", "type": "message"}


def _part(text: str) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}


def _response(reply: Reply, status: str, output: list[Json], usage: Json | None) -> Json:
    return {
        "id": _ID,
        "created_at": 0,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": None,
        "model": reply.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": reply.output_tokens,
        "previous_response_id": None,
        "service_tier": "auto",
        "status": status,
        "truncation": "disabled",
        "usage": usage,
        "user": None,
    }


def _usage(reply: Reply) -> Json:
    prompt, output = reply.prompt, reply.output_tokens
    return {
        "input_tokens": prompt.tokens,
        "input_tokens_details": {"cached_tokens": prompt.cached, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
        "total_tokens": prompt.tokens + output,
    }
