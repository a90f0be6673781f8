"""What the engine gets is what the client sent, and what the client gets is what the engine sent."""

import base64
import http.client
import json
import re
from collections.abc import Callable
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "Grüße, 世界 😀"}]


def client(stack: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.router.url}/v1", api_key="secret", max_retries=0, timeout=5)


@pytest.mark.parametrize(
    ("asked", "served"), [(NAME, "standard"), (f"{NAME}:standard", "standard"), (f"{NAME}:fast", "fast")]
)
def test_the_model_chooses_the_variant_and_the_response_names_it(stack: Any, asked: str, served: str) -> None:
    with client(stack) as api:
        raw = api.chat.completions.with_raw_response.create(model=asked, messages=MESSAGES, max_tokens=3)
    completion = raw.parse()
    assert completion.model == f"{NAME}:{served}"
    assert completion.choices[0].message.content == "w0 w1 w2 "
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 3
    assert raw.headers["x-twinspeed-variant"] == served
    assert {variant: app.stats.started for variant, app in stack.apps.items()} == {
        "standard": int(served == "standard"),
        "fast": int(served == "fast"),
    }


def test_completions_are_forwarded_too(stack: Any) -> None:
    with client(stack) as api:
        completion = api.completions.create(model=f"{NAME}:fast", prompt="Hi", max_tokens=2)
        streamed = list(api.completions.create(model=NAME, prompt="Hi", max_tokens=2, stream=True))
    assert (completion.model, completion.choices[0].text) == (f"{NAME}:fast", "w0 w1 ")
    assert "".join(chunk.choices[0].text for chunk in streamed) == "w0 w1 "


def test_only_the_model_changes_on_the_way_to_the_engine(stack: Any) -> None:
    body = (
        '{ "vllm_xargs" : {"model": "inner", "t": 1.50e+00},\n"messages":['
        '{"role":"user","content":"é \\u00e9 😀 }"}],'
        f'"model":"{NAME}:fast", "seed":12345678901234567890,"model" : "{NAME}:fast","unknown":null }}\n'
    ).encode()
    answer = stack.router.post(f"{CHAT}?a=%20b+%2f%7E&c=%c3%A9&d", body)
    stats = stack.engines["fast"].request("GET", "/stats").json
    assert answer.status == 200
    assert base64.b64decode(stats["last_body"]) == body
    assert stats["last_query"] == "a=%20b+%2f%7E&c=%c3%A9&d"


def test_the_bare_name_becomes_the_engines_model_id(stack: Any) -> None:
    body = b'{"model":"acme/tiny-7b","messages":[]}'
    assert stack.router.post(CHAT, body).status == 200
    last = base64.b64decode(stack.apps["standard"].stats.last_body)
    assert last == b'{"model":"acme/tiny-7b:standard","messages":[]}'


@pytest.mark.parametrize(
    ("fields", "headers", "sent"),
    [
        ({}, {}, None),
        ({"service_tier": "priority"}, {}, -1),
        ({"service_tier": "flex"}, {}, 2),
        ({}, {"x-twinspeed-lane": "rollout"}, 1),
        ({"service_tier": "flex", "priority": 7}, {}, 7),
    ],
)
def test_engines_that_schedule_by_priority_are_told_it(
    start_stack: Callable[..., Any], fields: Any, headers: dict[str, str], sent: int | None
) -> None:
    stack = start_stack(lambda config: config["models"][0]["variants"]["fast"].update(priority_scheduling=True))
    for stream in (False, True):
        body = {"model": f"{NAME}:fast", "messages": [], "stream": stream, **fields}
        assert stack.router.post(CHAT, body, headers).status == 200
        got = json.loads(base64.b64decode(stack.apps["fast"].stats.last_body))
        assert got.get("priority") == sent
        assert ("stream_options" in got) == stream
    stack.router.post(CHAT, {"model": f"{NAME}:standard", "messages": [], "service_tier": "flex"})
    assert "priority" not in json.loads(base64.b64decode(stack.apps["standard"].stats.last_body))


def test_a_large_body_arrives_whole(stack: Any) -> None:
    image = "QUJD" * 1_000_000
    body = {"model": f"{NAME}:fast", "messages": [{"role": "user", "content": image}]}
    assert stack.router.post(CHAT, body).status == 200
    assert json.loads(base64.b64decode(stack.apps["fast"].stats.last_body)) == body


def test_headers_for_the_engine(stack: Any) -> None:
    stack.router.post(
        CHAT,
        {"model": NAME, "messages": []},
        {
            "Authorization": "Bearer secret",
            "Accept-Encoding": "gzip",
            "Connection": "keep-alive, X-Private",
            "X-Private": "1",
            "Keep-Alive": "timeout=5",
            "TE": "trailers",
            "Expect": "100-continue",
            "Cookie": "a=b",
            "User-Agent": "probe",
            "X-Unicode": "é".encode().decode("latin-1"),
        },
    )
    headers = dict(stack.apps["standard"].stats.last_headers)
    gone = {
        "authorization",
        "accept-encoding",
        "connection",
        "x-private",
        "keep-alive",
        "te",
        "expect",
        "accept",
        "cookie",
    }
    assert not gone & headers.keys()
    assert headers["host"] == f"127.0.0.1:{stack.engines['standard'].port}"
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"] == "probe"
    assert headers["x-unicode"].encode("latin-1").decode() == "é"


def test_a_trace_goes_on_in_the_engine_and_is_the_routers_own_where_it_traces(start_stack: Callable[..., Any]) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for endpoint in (None, "http://127.0.0.1:9"):
        stack = start_stack(lambda config, endpoint=endpoint: config.update(otlp_endpoint=endpoint))
        stack.router.post(CHAT, {"model": NAME, "messages": []}, {"traceparent": given, "tracestate": "a=b"})
        sent = dict(stack.apps["standard"].stats.last_headers)
        assert sent["tracestate"] == "a=b"
        assert sent["traceparent"][:36] == given[:36]
        assert (sent["traceparent"] == given) == (endpoint is None)


def test_request_ids_are_taken_over_or_made(stack: Any) -> None:
    body = {"model": NAME, "messages": []}
    given = stack.router.post(CHAT, body, {"X-Request-Id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    assert dict(stack.apps["standard"].stats.last_headers)["x-request-id"] == "mine-1"
    made = [stack.router.post(CHAT, body).headers["x-request-id"] for _ in range(2)]
    assert dict(stack.apps["standard"].stats.last_headers)["x-request-id"] == made[1]
    assert len({*made, ""}) == 3


def test_headers_for_the_client(stack: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", stack.router.port)
    body = json.dumps({"model": NAME, "messages": [], "stream": True})
    connection.request("POST", CHAT, body, {"content-type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    names = [name.lower() for name, _ in response.getheaders()]
    assert len(names) == len(set(names))
    assert response.getheader("x-accel-buffering") == "no"
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("stream", [False, True])
def test_the_response_is_the_engines_byte_for_byte(stack: Any, stream: bool) -> None:
    body = {
        "model": f"{NAME}:fast",
        "messages": MESSAGES,
        "max_tokens": 50,
        "stream": stream,
        "stream_options": {"include_usage": True},
    }
    direct = stack.engines["fast"].post(CHAT, body)
    routed = stack.router.post(CHAT, body)
    assert routed.body == direct.body
    assert routed.headers["content-type"] == direct.headers["content-type"]
    assert routed.headers.get("content-length") == direct.headers.get("content-length")


def test_the_usage_chunk_is_kept(stack: Any) -> None:
    with client(stack) as api:
        chunks = list(
            api.chat.completions.create(
                model=NAME,
                messages=MESSAGES,
                max_tokens=4,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert {chunk.model for chunk in chunks} == {f"{NAME}:standard"}


def test_each_token_arrives_while_the_engine_holds_back_the_next(stack: Any, eventually: Callable[..., bool]) -> None:
    with client(stack) as api:
        stream = api.chat.completions.create(
            model=f"{NAME}:fast",
            messages=MESSAGES,
            max_tokens=5,
            stream=True,
            extra_headers={"x-mock": "hold-after=2"},
        )
        words = (chunk.choices[0].delta.content for chunk in stream)
        # The engine sends nothing more until it is released, so these two were not kept back for company.
        assert [next(words), next(words)] == ["w0 ", "w1 "]
        assert stack.apps["fast"].stats.finished == 0
        stack.engines["fast"].request("POST", "/release")
        assert "".join(words) == "w2 w3 w4 "
        stream.close()
    assert eventually(lambda: stack.apps["fast"].stats.finished == 1)


@pytest.mark.parametrize("status", [400, 404, 422, 429, 501])
def test_an_engines_error_passes_untouched(stack: Any, status: int) -> None:
    headers = {"x-mock": f"status={status}"}
    direct = stack.engines["fast"].post(CHAT, {"model": f"{NAME}:fast"}, headers)
    routed = stack.router.post(CHAT, {"model": f"{NAME}:fast"}, headers)
    assert (routed.status, routed.body) == (direct.status, direct.body) == (status, direct.body)
    assert routed.headers["retry-after"] == "7"
    assert routed.headers["x-twinspeed-variant"] == "fast"


def test_one_connection_carries_many_requests(stack: Any) -> None:
    ports = set()
    for stream in (False, True, False, True):
        stack.router.post(CHAT, {"model": NAME, "messages": [], "stream": stream})
        ports.add(stack.apps["standard"].stats.last_peer)
    assert len(ports) == 1


def test_a_stream_tells_its_cost_before_its_end_if_asked(start_stack: Callable[..., Any]) -> None:
    def priced(config: dict[str, Any]) -> None:
        config["models"][0]["variants"]["fast"]["usd_per_hour"] = 3.6

    stack = start_stack(priced)
    body = {"model": f"{NAME}:fast", "messages": MESSAGES, "max_tokens": 3, "stream": True}
    silent = stack.router.post(CHAT, body)
    told = stack.router.post(CHAT, body, {"x-twinspeed-cost": "comment"})
    found = re.search(rb"\n(: x-twinspeed-cost-usd: (\d+\.\d{9})\n\n)data: \[DONE\]\n\n$", told.body)
    assert found
    assert float(found[2]) > 0
    assert told.body.replace(found[1], b"") == silent.body
    whole = stack.router.post(CHAT, {**body, "stream": False})
    assert float(whole.headers["x-twinspeed-cost-usd"]) > 0
