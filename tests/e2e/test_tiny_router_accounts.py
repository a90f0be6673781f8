"""What a key is charged with real engines: to the token what its client saw, for every endpoint, streamed and not."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.front import ONE_RELEASE, Account, Front

pytestmark = [pytest.mark.engine, ONE_RELEASE]

Call = Callable[[Account, str, str], int]
"""Sends a text to a model; gives the tokens that the client saw, or could have seen had it asked."""

ANSWER = 16
SAMPLING: Any = {"temperature": 1, "seed": 5, "max_tokens": ANSWER, "extra_body": {"ignore_eos": True}}
RESPONSE: Any = {"temperature": 1, "max_output_tokens": ANSWER, "extra_body": {"seed": 5}}
MESSAGE: Any = {"max_tokens": ANSWER, "extra_body": {"temperature": 1}}


def chat(account: Account, model: str, text: str) -> int:
    answer = account.openai().chat.completions.create(model=model, messages=_turn(text), **SAMPLING)
    assert answer.usage is not None
    return answer.usage.total_tokens


def chat_stream(account: Account, model: str, text: str) -> int:
    stream = account.openai().chat.completions.create(model=model, messages=_turn(text), stream=True, **SAMPLING)
    assert all(chunk.usage is None for chunk in stream)
    # The template puts a token before the turn and one after it; the model's tokens are bytes.
    return len(text) + 2 + ANSWER


def chat_stream_with_usage(account: Account, model: str, text: str) -> int:
    stream = account.openai().chat.completions.create(
        model=model, messages=_turn(text), stream=True, stream_options={"include_usage": True}, **SAMPLING
    )
    [usage] = [chunk.usage for chunk in stream if chunk.usage]
    return usage.total_tokens


def chat_choices(account: Account, model: str, text: str) -> int:
    answer = account.openai().chat.completions.create(model=model, messages=_turn(text), n=3, **SAMPLING)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3 * ANSWER
    return answer.usage.total_tokens


def completion(account: Account, model: str, text: str) -> int:
    answer = account.openai().completions.create(model=model, prompt=text, **SAMPLING)
    assert answer.usage is not None
    return answer.usage.total_tokens


def completion_stream(account: Account, model: str, text: str) -> int:
    for chunk in account.openai().completions.create(model=model, prompt=text, stream=True, **SAMPLING):
        assert chunk.usage is None
    return len(text) + ANSWER


def response(account: Account, model: str, text: str) -> int:
    answer = account.openai().responses.create(model=model, input=text, **RESPONSE)
    assert answer.usage is not None
    return answer.usage.total_tokens


def response_stream(account: Account, model: str, text: str) -> int:
    *_, last = account.openai().responses.create(model=model, input=text, stream=True, **RESPONSE)
    assert last.type == "response.completed"
    assert last.response.usage is not None
    return last.response.usage.total_tokens


def message(account: Account, model: str, text: str) -> int:
    answer = account.anthropic().messages.create(model=model, messages=_turn(text), **MESSAGE)
    return _total(answer.usage)


def message_stream(account: Account, model: str, text: str) -> int:
    with account.anthropic().messages.stream(model=model, messages=_turn(text), **MESSAGE) as stream:
        return _total(stream.get_final_message().usage)


CALLS = (
    chat,
    chat_stream,
    chat_stream_with_usage,
    chat_choices,
    completion,
    completion_stream,
    response,
    response_stream,
    message,
    message_stream,
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("variant", ["standard", "fast"])
def test_a_key_is_charged_the_tokens_that_its_client_saw(
    front: Front, account: Account, variant: str, call: Call
) -> None:
    seen = call(account, f"{front.name}:{variant}", "hello")
    usage = account.usage()
    assert (usage["day_tokens"], usage["day_requests"]) == (seen, 1)
    assert usage["day_cost"] > 0


@pytest.mark.parametrize("call", [chat, response, message, message_stream], ids=lambda call: call.__name__)
def test_a_prompt_that_the_engine_knows_counts_in_full(front: Front, account: Account, call: Call) -> None:
    def cached() -> float:
        return front.metric("twinspeed_router_tokens_total", variant="standard", kind="cached")

    # Of several blocks of the engine's cache, and of no other test's.
    text = call.__name__ + "." * 300
    first = call(account, f"{front.name}:standard", text)
    before = cached()
    second = call(account, f"{front.name}:standard", text)
    usage = account.usage()
    assert second >= len(text)
    assert (usage["day_tokens"], usage["day_requests"]) == (first + second, 2)
    assert cached() >= before + 128


def _turn(text: str) -> Any:
    return [{"role": "user", "content": text}]


def _total(usage: Any) -> int:
    """Anthropic's input tokens are those that no cache had."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return int(usage.input_tokens + cached + usage.output_tokens)
