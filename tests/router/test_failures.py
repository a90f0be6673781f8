"""Dead, dying and silent engines: an error that says so, and never a part taken for the whole."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from aiohttp import ClientTimeout

import router.forward

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
CRLF = b"\r\n"


def request(variant: str, **fields: Any) -> dict[str, Any]:
    return {"model": f"{NAME}:{variant}", "messages": [], "max_tokens": 5, **fields}


def test_a_dead_variant_is_refused_the_other_serves_and_the_first_comes_back(stack: Any) -> None:
    assert stack.router.post(CHAT, request("fast")).status == 200
    stack.engines["fast"].stop()
    refused = stack.router.post(CHAT, request("fast"))
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-twinspeed-variant"] == "fast"
    assert refused.headers["content-type"] == "application/json"
    error = refused.json["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "variant_unavailable", None)
    assert "Variant fast" in error["message"]
    assert stack.router.post(CHAT, request("standard")).status == 200
    stack.restart("fast")
    assert stack.router.post(CHAT, request("fast")).status == 200
    assert stack.metric("twinspeed_router_in_flight", variant="fast") == 0


@pytest.fixture
def careless_engine() -> Iterator[Callable[[bytes], str]]:
    """An engine that reads a request, answers with the given bytes and closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> str:
        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join()
    listener.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nconte", b"no HTTP at all\r\n\r\n"])
def test_an_engine_that_closes_before_a_whole_head_is_unavailable(
    careless_engine: Callable[[bytes], str], start_router: Callable[..., Any], answer: bytes
) -> None:
    router = start_router(f"standard={careless_engine(answer)}")
    refused = router.post(CHAT, request("standard"))
    assert (refused.status, refused.json["error"]["code"]) == (503, "variant_unavailable")


def test_an_engine_that_says_nothing_in_time_is_a_504(
    stack: Any, start_router: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router.forward, "_TIMEOUT", ClientTimeout(total=None, connect=5, sock_read=0.1))
    impatient = start_router(f"standard={stack.engines['standard'].url}")
    late = impatient.post(CHAT, request("standard"), {"x-mock": "hang"})
    assert (late.status, late.json["error"]["type"], late.json["error"]["code"]) == (
        504,
        "server_error",
        "variant_timeout",
    )
    stalled = impatient.post(CHAT, request("standard", stream=True), {"x-mock": "hold-after=2"})
    assert json.loads(stalled.body.split(b"\n\n")[2].removeprefix(b"data: "))["error"]["code"] == "variant_failed"


@pytest.mark.parametrize("fault", ["die-after=2", "cut-after=2"])
def test_a_stream_whose_engine_dies_ends_with_an_error_event(paced_stack: Any, fault: str) -> None:
    answer = paced_stack.router.post(CHAT, request("fast", stream=True), {"x-mock": fault})
    direct = paced_stack.engines["fast"].post(CHAT, request("fast", stream=True))
    events = answer.body.split(b"\n\n")
    assert answer.status == 200
    assert events[:2] == direct.body.split(b"\n\n")[:2]
    assert events.pop() == b""
    error = json.loads(events[-1].removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "variant_failed")
    assert "fast" in error["message"]
    assert b"[DONE]" not in answer.body


def test_the_openai_client_raises_when_the_engine_dies_in_a_stream(paced_stack: Any) -> None:
    with openai.OpenAI(base_url=f"{paced_stack.router.url}/v1", api_key="x", max_retries=0, timeout=5) as api:
        stream = api.chat.completions.create(
            model=NAME, messages=[], max_tokens=5, stream=True, extra_headers={"x-mock": "die-after=2"}
        )
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["w0 ", "w1 "]
        with pytest.raises(openai.APIError, match="Variant standard failed in the middle") as failure:
            next(stream)
    assert failure.value.code == "variant_failed"


def test_an_answer_whose_engine_dies_is_seen_as_broken(paced_stack: Any) -> None:
    with pytest.raises(http.client.IncompleteRead):
        paced_stack.router.post(CHAT, request("fast"), {"x-mock": "die-after=1"})
    assert paced_stack.metric("twinspeed_router_in_flight", variant="fast") == 0
    assert paced_stack.metric("twinspeed_router_client_disconnects_total", variant="fast") == 0
    assert paced_stack.router.post(CHAT, request("fast")).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n6\r\n",
        b"content-type: text/event-stream\r\ncontent-length: 99\r\n\r\n",
    ],
)
def test_no_error_event_where_the_client_could_not_tell_it_from_the_answer(
    careless_engine: Callable[[bytes], str], start_router: Callable[..., Any], head: bytes
) -> None:
    router = start_router(f"standard={careless_engine(b'HTTP/1.1 200 OK' + CRLF + head + b'{part:' + CRLF)}")
    with pytest.raises(http.client.IncompleteRead):
        router.post(CHAT, request("standard"))
