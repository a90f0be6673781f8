"""OpenAI's client for Python against a router with keys and real engines: every form of request that it knows."""

import io
import json
import time
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, ConfigDict

from tests.e2e.front import ONE_RELEASE, Account, Front

pytestmark = [pytest.mark.engine, ONE_RELEASE]

HELLO: Any = [{"role": "user", "content": "hello"}]
# A model of random weights says everything, so that equal texts are equal sampling and not chance.
SAMPLING: dict[str, Any] = {"temperature": 1, "seed": 5, "max_tokens": 24}
# Between JSON's parts it likes white space, and repeats itself unless it is hot.
CONSTRAINED: dict[str, Any] = {"temperature": 2, "seed": 5, "max_tokens": 400}


class Light(BaseModel):
    """What the model is made to answer."""

    model_config = ConfigDict(extra="forbid")

    on: bool
    colour: Literal["red", "green"]


TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "set_light", "parameters": Light.model_json_schema(), "strict": True},
    }
]


@pytest.fixture(params=["standard", "fast"])
def model(front: Front, request: pytest.FixtureRequest) -> str:
    return f"{front.name}:{request.param}"


@pytest.fixture
def client(account: Account) -> openai.OpenAI:
    return account.openai()


def test_a_chat_completion_is_the_same_streamed_and_not(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=HELLO, **SAMPLING)
    assert whole.model == model
    assert whole.choices[0].message.content
    assert whole.usage is not None
    chunks = list(client.chat.completions.create(model=model, messages=HELLO, stream=True, **SAMPLING))
    # Clients read `choices[0]` of every chunk when they have not asked for usage.
    assert [chunk for chunk in chunks if not chunk.choices or chunk.usage] == []
    asked = list(
        client.chat.completions.create(
            model=model, messages=HELLO, stream=True, stream_options={"include_usage": True}, **SAMPLING
        )
    )
    assert asked[-1].choices == []
    assert asked[-1].usage is not None
    assert asked[-1].usage.total_tokens == whole.usage.total_tokens
    for stream in chunks, asked:
        assert {chunk.model for chunk in stream} == {model}
        assert _text(stream) == whole.choices[0].message.content
        assert _finish(stream) == whole.choices[0].finish_reason


def test_a_text_completion_is_the_same_streamed_and_not(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="abcabc", **SAMPLING)
    assert whole.model == model
    assert whole.choices[0].text
    chunks = list(client.completions.create(model=model, prompt="abcabc", stream=True, **SAMPLING))
    assert [chunk for chunk in chunks if not chunk.choices or chunk.usage] == []
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_a_required_tool_is_called_with_valid_arguments(client: openai.OpenAI, model: str) -> None:
    def call(**more: Any) -> Any:
        return client.chat.completions.create(
            model=model,
            messages=HELLO,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            **CONSTRAINED,
            **more,
        )

    answer: ChatCompletion = call()
    [whole] = answer.choices[0].message.tool_calls or []
    assert whole.type == "function"
    assert whole.id
    assert whole.function.name == "set_light"
    Light.model_validate_json(whole.function.arguments)
    deltas = [delta for chunk in call(stream=True) for delta in chunk.choices[0].delta.tool_calls or []]
    assert [delta.function.name for delta in deltas if delta.function.name] == ["set_light"]
    assert [delta.id for delta in deltas if delta.id]
    Light.model_validate_json("".join(delta.function.arguments or "" for delta in deltas))


def test_structured_output_parses(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=HELLO, response_format=Light, **CONSTRAINED)
    assert isinstance(answer.choices[0].message.parsed, Light)


def test_logprobs_come_for_every_token(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=HELLO, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True}, **SAMPLING
    )
    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.content or []
    assert len(tokens) == 24
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)


def test_n_gives_so_many_different_choices(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=HELLO, n=2, **SAMPLING)
    first, second = (choice.message.content for choice in answer.choices)
    assert first != second


def test_a_seed_repeats_and_another_does_not(client: openai.OpenAI, model: str) -> None:
    def text(seed: int) -> str:
        answer = client.completions.create(model=model, prompt="abc", **{**SAMPLING, "seed": seed})
        return answer.choices[0].text

    assert text(1) == text(1) != text(2)


def test_an_answer_ends_before_a_stop_string(client: openai.OpenAI, model: str) -> None:
    letters = ["a", "e", "i", "o"]
    answer = client.completions.create(model=model, prompt="abc", stop=letters, **{**SAMPLING, "max_tokens": 480})
    assert answer.choices[0].finish_reason == "stop"
    assert not set(answer.choices[0].text) & set(letters)


def test_a_response_is_the_same_streamed_and_not(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"input": "hello", "max_output_tokens": 24, "temperature": 1, "extra_body": {"seed": 5}}
    whole = client.responses.create(model=model, **asked)
    assert whole.model == model
    assert whole.output_text
    events = list(client.responses.create(model=model, stream=True, **asked))
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.total_tokens == whole.usage.total_tokens


def test_models_are_listed_by_every_name_that_can_be_asked_for(client: openai.OpenAI, front: Front) -> None:
    names = {front.name, *(f"{front.name}:{suffix}" for suffix in ("standard", "fast", "floor", "nitro"))}
    assert {model.id for model in client.models.list()} == names
    assert client.models.retrieve(f"{front.name}:fast").id == f"{front.name}:fast"


def test_a_prompt_goes_to_tokens_and_back(front: Front, account: Account) -> None:
    headers = {"authorization": f"Bearer {account.secret}"}
    there = front.public.post("/tokenize", {"model": front.name, "prompt": "héllo"}, headers)
    assert there.json["count"] == len("héllo".encode()) == len(there.json["tokens"])
    back = front.public.post("/detokenize", {"model": front.name, "tokens": there.json["tokens"]}, headers)
    assert back.json["prompt"] == "héllo"


def test_a_batch_of_ten_lines_answers_nine_and_says_what_is_wrong_with_one(
    client: openai.OpenAI, front: Front, account: Account
) -> None:
    def line(number: int) -> str:
        body = {"model": f"{front.name}:fast", "messages": HELLO, "max_tokens": 4}
        if number == 5:
            body["temperature"] = -3
        return json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})

    lines = "\n".join(map(line, range(10)))
    uploaded = client.files.create(file=("in.jsonl", io.BytesIO(lines.encode())), purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline = time.monotonic() + 60
    while batch.status != "completed":
        assert batch.status in ("validating", "in_progress", "finalizing"), batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (9, 1)

    def results(file_id: str | None) -> list[dict[str, Any]]:
        assert file_id is not None
        return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]

    answered, [failed] = results(batch.output_file_id), results(batch.error_file_id)
    assert [each["custom_id"] for each in answered] == list("012346789")
    bodies = [ChatCompletion.model_validate(each["response"]["body"]) for each in answered]
    assert {body.model for body in bodies} == {f"{front.name}:fast"}
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("5", 400)
    assert "temperature must be non-negative" in failed["response"]["body"]["error"]["message"]
    assert account.usage()["day_tokens"] == sum(body.usage.total_tokens for body in bodies if body.usage)


def test_a_wrong_key_is_an_authentication_error(front: Front) -> None:
    stranger = Account(front, "none", "sk-ts-" + "x" * 43)
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.openai().chat.completions.create(model=front.name, messages=HELLO)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, model: client.chat.completions.create(model=model, messages=HELLO),
        lambda client, model: client.completions.create(model=model, prompt="x", stream=True),
        lambda client, model: client.responses.create(model=model, input="x"),
        lambda client, model: client.models.retrieve(model),
    ],
    ids=["chat", "completions", "responses", "models"],
)
def test_an_unknown_model_is_not_found(client: openai.OpenAI, ask: Callable[[openai.OpenAI, str], object]) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "nothing")
    assert caught.value.code == "model_not_found"


def test_a_bad_parameter_gets_the_engines_own_message(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=HELLO, temperature=-3)
    assert "temperature must be non-negative, got -3.0" in str(caught.value)


def test_embeddings_get_the_engines_own_refusal(client: openai.OpenAI, front: Front) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=front.name, input="hello")


def test_what_fast_cannot_sample_goes_to_standard_unless_fast_is_pinned(client: openai.OpenAI, front: Front) -> None:
    more: Any = {**SAMPLING, "extra_body": {"min_p": 0.1}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=f"{front.name}:fast", messages=HELLO, **more)
    assert (caught.value.code, caught.value.param) == ("capability_not_supported", "min_p")
    answer = client.chat.completions.create(model=front.name, messages=HELLO, **more)
    assert answer.model == f"{front.name}:standard"


@pytest.mark.parametrize("goal", ["floor", "nitro"])
def test_a_goal_is_answered_by_one_of_the_variants(client: openai.OpenAI, front: Front, goal: str) -> None:
    answer = client.chat.completions.with_raw_response.create(model=f"{front.name}:{goal}", messages=HELLO, **SAMPLING)
    assert answer.headers["x-twinspeed-reason"] == goal
    assert answer.parse().model == f"{front.name}:{answer.headers['x-twinspeed-variant']}"


def _text(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def _finish(chunks: list[ChatCompletionChunk]) -> str | None:
    [reason] = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    return reason
