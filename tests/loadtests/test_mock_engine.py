"""What the mock engine answers by each of vLLM's APIs, through the real client where there is one."""

import hashlib
import json
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.unit

MODEL = "tiny:fast"
HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How are you?"}]
FORTY: Any = [{"role": "user", "content": " ".join(f"word{number}" for number in range(40))}]
TOOLS: Any = [
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    },
]


def test_chat_says_numbered_words_and_counts_words_as_tokens(engine: Any) -> None:
    answer = engine.openai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3)
    assert answer.choices[0].message.content == "w0 w1 w2 "
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 3, 8)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("tokens_per_chunk", [1, 4])
def test_a_stream_says_the_same(serve: Any, tokens_per_chunk: int) -> None:
    client = serve(tokens_per_chunk=tokens_per_chunk).openai
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=10, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "".join(f"w{n} " for n in range(10))
    assert len(chunks) == (11 if tokens_per_chunk == 1 else 4)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 5, 10)


def test_a_repeated_beginning_is_cached_in_blocks_and_by_salt(engine: Any) -> None:
    def cached(content: str, salt: str = "a") -> int:
        messages: Any = [{"role": "user", "content": content}]
        usage = engine.openai.chat.completions.create(
            model=MODEL, messages=messages, extra_body={"cache_salt": salt}
        ).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    forty = FORTY[0]["content"]
    assert cached(forty) == 0
    assert cached(forty) == 32
    assert cached(f"{forty} and more") == 32
    assert cached(f"first {forty}") == 0
    assert cached(forty, salt="b") == 0
    sixteen = " ".join(forty.split()[:16])
    # The last token is always computed.
    assert cached(sixteen) == 0
    assert cached(f"{sixteen} more") == 16


def test_completions_answer_each_prompt_n_times(engine: Any) -> None:
    create = engine.openai.completions.create
    answer = create(model=MODEL, prompt=["a b", "c"], n=2, max_tokens=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(n, "w0 w1 ") for n in range(4)]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 8)
    chunks = list(create(model=MODEL, prompt=["a b", "c"], n=2, max_tokens=2, stream=True))
    for index in range(4):
        texts = [chunk.choices[0].text for chunk in chunks if chunk.choices[0].index == index]
        assert texts == ["w0 ", "w1 ", ""]


def test_token_ids_and_prompt_logprobs_are_vllms(engine: Any) -> None:
    [choice] = engine.openai.completions.create(
        model=MODEL, prompt=[7, 8, 1001], max_tokens=2, extra_body={"return_token_ids": True, "prompt_logprobs": 1}
    ).choices
    assert (choice.prompt_token_ids, choice.token_ids) == ([7, 8, 1001], [1000, 1001])
    assert [position and list(position) for position in choice.prompt_logprobs] == [None, ["8"], ["1001"]]
    first = next(
        iter(
            engine.openai.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True, extra_body={"return_token_ids": True}
            )
        )
    )
    assert len(first.prompt_token_ids) == 5
    assert first.choices[0].token_ids == [1000]


def test_log_probabilities_come_with_every_token(engine: Any) -> None:
    chat = engine.openai.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=3
    )
    content = chat.choices[0].logprobs.content
    assert [(token.token, len(token.top_logprobs)) for token in content] == [("w0 ", 3), ("w1 ", 3)]
    assert content[0].top_logprobs[0].logprob == content[0].logprob
    [choice] = engine.openai.completions.create(model=MODEL, prompt="Hi", max_tokens=2, logprobs=1).choices
    assert choice.logprobs.tokens == ["w0 ", "w1 "]
    assert choice.logprobs.text_offset == [0, 3]


@pytest.mark.parametrize(
    ("stop", "text", "tokens", "reason"),
    [("w2", "w0 w1 ", 3, "w2"), (["w9", "1 w2"], "w0 w", 3, "1 w2"), ("no", "w0 w1 w2 w3 ", 4, None)],
)
def test_a_stop_string_ends_the_answer(engine: Any, stop: Any, text: str, tokens: int, reason: str | None) -> None:
    answer = engine.openai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4, stop=stop)
    [choice] = answer.choices
    assert (choice.message.content, answer.usage.completion_tokens, choice.stop_reason) == (text, tokens, reason)
    assert choice.finish_reason == ("length" if reason is None else "stop")


@pytest.mark.parametrize(
    ("choice", "name", "finish"),
    [("required", "clock", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "weather", "stop")],
)
def test_a_call_is_made_where_one_is_asked_for(engine: Any, choice: Any, name: str, finish: str) -> None:
    create = engine.openai.chat.completions.create
    [whole] = create(model=MODEL, messages=HELLO, tools=TOOLS, tool_choice=choice).choices
    [call] = whole.message.tool_calls
    assert (call.function.name, whole.finish_reason, whole.message.content) == (name, finish, "")
    assert json.loads(call.function.arguments) == ({} if name == "clock" else {"city": "w0", "days": 0})
    stream = [
        chunk.choices[0] for chunk in create(model=MODEL, messages=HELLO, tools=TOOLS, tool_choice=choice, stream=True)
    ]
    deltas = [part.delta.tool_calls[0] for part in stream if part.delta.tool_calls]
    assert (deltas[0].id, deltas[0].function.name) == (call.id, name)
    assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
    assert stream[-1].finish_reason == finish


def test_tools_alone_make_no_call(engine: Any) -> None:
    [choice] = engine.openai.chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS, max_tokens=1).choices
    assert (choice.message.tool_calls, choice.message.content) == (None, "w0 ")


def test_json_fits_the_schema(engine: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["é", "b"]}},
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    [choice] = engine.openai.chat.completions.create(model=MODEL, messages=HELLO, response_format=wanted).choices
    assert json.loads(choice.message.content) == {"name": "w0", "age": 0, "kind": "é"}
    assert choice.finish_reason == "stop"
    wanted = {"type": "json_object"}
    [choice] = engine.openai.chat.completions.create(model=MODEL, messages=HELLO, response_format=wanted).choices
    assert isinstance(json.loads(choice.message.content), dict)


def test_responses_are_openais(engine: Any) -> None:
    answer = engine.openai.responses.create(
        model=MODEL, instructions="Be brief.", input="How are you?", max_output_tokens=2
    )
    assert (answer.output_text, answer.status, answer.incomplete_details.reason) == (
        "w0 w1 ",
        "incomplete",
        "max_output_tokens",
    )
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (5, 2, 7)
    assert answer.usage.input_tokens_details.cached_tokens == 0
    stream = list(engine.openai.responses.create(model=MODEL, input=FORTY, max_output_tokens=2, stream=True))
    assert [event.type for event in stream] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in stream] == list(range(10))
    assert stream[-1].response.output_text == "w0 w1 "
    assert stream[-1].response.usage.input_tokens == 40


def test_messages_are_anthropics(engine: Any) -> None:
    body = {"model": MODEL, "messages": FORTY, "system": "Be brief.", "max_tokens": 2}
    answer = engine.post("/v1/messages", body).json
    assert answer["content"] == [{"type": "text", "text": "w0 w1 "}]
    assert (answer["role"], answer["stop_reason"]) == ("assistant", "max_tokens")
    assert answer["usage"] == {"input_tokens": 42, "output_tokens": 2, "cache_read_input_tokens": 0}
    events = engine.post("/v1/messages", {**body, "stream": True}).events
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events]
    assert names == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta") == "w0 w1 "
    assert events[5][1]["usage"] == {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 32}
    assert engine.post("/v1/messages/count_tokens", body).json["input_tokens"] == 42
    stopped = engine.post("/v1/messages", {**body, "stop_sequences": ["w1"]}).json
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "w1")


def test_equal_inputs_have_equal_embeddings(engine: Any) -> None:
    answer = engine.openai.embeddings.create(model=MODEL, input=["a b", "c", "a  b"], dimensions=4)
    first, second, third = (item.embedding for item in answer.data)
    assert first == third != second
    assert len(first) == 4
    assert answer.usage.prompt_tokens == 5
    plain = engine.openai.embeddings.create(model=MODEL, input="a b", dimensions=4, encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(first)


def test_texts_become_tokens_and_tokens_texts(engine: Any) -> None:
    answer = engine.post("/tokenize", {"model": MODEL, "prompt": "a w7 a"}).json
    assert (answer["count"], answer["tokens"][1]) == (3, 1007)
    assert answer["tokens"][0] == answer["tokens"][2]
    assert engine.post("/tokenize", {"messages": HELLO, "return_token_strs": True}).json["token_strs"][0] == "Be"
    assert engine.post("/detokenize", {"tokens": [1000, 1001, 5]}).json == {"prompt": "w0 w1 t5"}


def test_answers_can_be_told_apart_and_tell_what_arrived(engine: Any) -> None:
    body = '{"model" : "tiny:fast","messages":[ ],"metadata":{"tag":"é😀-7"},"max_tokens":2}'.encode()
    answer = engine.post("/v1/chat/completions", body).json
    assert answer["choices"][0]["message"]["content"] == "[é😀-7] w1 "
    assert answer["usage"]["completion_tokens"] == 2
    assert engine.chat(user="u1").json["choices"][0]["message"]["content"] == "[u1] w1 w2 "
    body = b'{"x_echo_sha": true,  "model":"tiny:fast","max_tokens":1,"stream":true}'
    events = engine.post("/v1/chat/completions", body).events
    text = "".join(data["choices"][0]["delta"]["content"] for _, data in events[:-1])
    assert text == hashlib.sha256(body).hexdigest()


def test_what_cannot_be_answered_is_refused_in_the_apis_shape(engine: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="`other` does not exist"):
        engine.openai.chat.completions.create(model="other", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="names no function"):
        engine.openai.chat.completions.create(
            model=MODEL, messages=HELLO, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "x"}}
        )
    for body in (b"{", b"[]", b'{"max_tokens":"x"}', b""):
        refused = engine.post("/v1/chat/completions", body)
        assert (refused.status, refused.json["error"]["type"]) == (400, "BadRequestError")
    refused = engine.post("/v1/messages", {"model": "other"})
    assert (refused.status, refused.json["type"], refused.json["error"]["type"]) == (404, "error", "NotFoundError")
    assert engine.get("/nowhere").status == 404


def test_metrics_have_vllms_names_and_labels(engine: Any) -> None:
    for _ in range(2):
        engine.chat(messages=FORTY)
    engine.chat(messages=FORTY, stream=True)
    engine.post("/v1/embeddings", {"input": "no generation"})
    samples = [
        sample
        for family in text_string_to_metric_families(engine.get("/metrics").body.decode())
        for sample in family.samples
    ]
    assert all(sample.labels == {"model_name": MODEL, "engine": "0"} for sample in samples)
    assert {sample.name: sample.value for sample in samples} == {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:prefix_cache_queries_total": 120,
        "vllm:prefix_cache_hits_total": 64,
        "vllm:prompt_tokens_total": 120,
        "vllm:generation_tokens_total": 9,
    }
