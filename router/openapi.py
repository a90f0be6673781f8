"""What the published OpenAPI document says of the paths that engines answer.

Only what the router itself reads is described; every other member passes to the engine, whose documentation counts.
"""

from typing import Any

_MODEL = {
    "type": "string",
    "description": "`NAME`: the policy decides. `NAME:VARIANT`: that variant. `NAME:floor`: the cheapest. "
    "`NAME:nitro`: the quickest.",
}
_TIER = {"type": "string", "enum": ["auto", "default", "flex", "priority"]}
_COUNT = {"type": "integer", "minimum": 1}
_MESSAGES = {"type": "array", "items": {"type": "object"}}
_STREAM = {"stream": {"type": "boolean"}, "stream_options": {"type": "object"}}

# By path: a summary, the members that are required beside `model`, and the other members that the router reads.
_FORWARDED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": (
        "Chat completion",
        {"messages": _MESSAGES},
        {"max_tokens": _COUNT, "max_completion_tokens": _COUNT, **_STREAM},
    ),
    "/v1/completions": ("Text completion", {"prompt": {}}, {"max_tokens": _COUNT, **_STREAM}),
    "/v1/responses": ("Response", {"input": {}}, {"max_output_tokens": _COUNT, "stream": {"type": "boolean"}}),
    "/v1/embeddings": ("Embeddings", {"input": {}}, {}),
    "/v1/messages": (
        "Message (Anthropic)",
        {"messages": _MESSAGES, "max_tokens": _COUNT},
        {"stream": {"type": "boolean"}},
    ),
    "/v1/messages/count_tokens": ("Tokens of a message (Anthropic)", {"messages": _MESSAGES}, {}),
    "/tokenize": ("Token ids of a prompt", {}, {"prompt": {"type": "string"}, "messages": _MESSAGES}),
    "/detokenize": ("Text of token ids", {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}, {}),
}
FORWARDED = frozenset(_FORWARDED)

_HEADERS = {
    "x-session-id": ("string", "Requests of one session stay on one replica, whose cache knows their beginning."),
    "x-slo-ttft-ms": ("number", "The first token is wanted within so many milliseconds."),
    "x-slo-tpot-ms": ("number", "Each further token is wanted within so many milliseconds."),
    "x-max-cost-usd": ("number", "A request whose predicted cost is above this is refused."),
    "x-twinspeed-lane": ("string", "`interactive`, `batch` or `rollout`; goes before `service_tier`."),
    "x-twinspeed-task": ("string", "The kind of task, by which the release's quality evidence is looked up."),
    "x-twinspeed-cost": ("string", "`comment`: a stream says what it cost in an SSE comment before `[DONE]`."),
    "idempotency-key": ("string", "A request sent again under one key is made once, and answered alike."),
    "x-request-id": ("string", "Taken over, and sent to the engine."),
}


def operation(path: str) -> dict[str, Any]:
    """The OpenAPI operation of a forwarded path."""
    summary, required, others = _FORWARDED[path]
    schema = {
        "type": "object",
        "required": ["model", *required],
        "properties": {"model": _MODEL, **required, **others, "service_tier": _TIER},
        "additionalProperties": True,
    }
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}}
    return {
        "summary": summary,
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": says, "schema": {"type": kind}}
            for name, (kind, says) in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "The engine's answer, byte for byte.",
                "content": {"application/json": {"schema": {}}, "text/event-stream": {"schema": {"type": "string"}}},
            },
            "default": {
                "description": "An error in OpenAI's shape.",
                "content": {"application/json": {"schema": error}},
            },
        },
    }
