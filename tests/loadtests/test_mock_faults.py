"""How the mock engine misbehaves on request, as a client sees it on the wire, and what it remembers of it."""

import contextlib
import http.client
import json
import math
import socket
import time
from typing import Any

import pytest

pytestmark = pytest.mark.unit

MODEL = "tiny:fast"


def exchange(engine: Any, fault: str, *, stream: bool) -> bytes:
    """All bytes that come on a connection for one request."""
    body = json.dumps({"model": MODEL, "messages": [], "max_tokens": 3, "stream": stream, "user": "é😀"}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\nconnection: close\r\nx-mock: {fault}\r\n"
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def http_chunks(answer: bytes) -> list[bytes]:
    """The chunks of a chunked body, in the pieces that the server wrote."""
    rest = answer.partition(b"\r\n\r\n")[2]
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return chunks


@pytest.mark.parametrize("stream", [False, True])
def test_an_asked_status_is_answered_in_the_apis_shape(engine: Any, stream: bool) -> None:
    refused = engine.chat(stream=stream, x_mock="status=429")
    assert (refused.status, refused.json["error"]["type"]) == (429, "Too Many Requests")
    refused = engine.post("/v1/messages", {"model": MODEL}, x_mock="status=529")
    assert (refused.status, refused.json["type"]) == (529, "error")


@pytest.mark.parametrize("fault", ["split", "burst=2", "slow=1"])
def test_only_the_writes_of_a_whole_answer_differ(engine: Any, fault: str) -> None:
    usual, other = (http_chunks(exchange(engine, name, stream=True)) for name in ("burst=1", fault))
    assert b"".join(other) == b"".join(usual)
    assert b"".join(usual).count(b"\n\n") == len(usual) - 1 == 5
    assert len(other) - 1 == {"split": 15, "burst=2": 3, "slow=1": 5}[fault]
    usual, other = (exchange(engine, name, stream=False).partition(b"\r\n\r\n")[2] for name in ("burst=1", fault))
    assert other == usual
    assert json.loads(usual)["choices"][0]["message"]["content"] == "[é😀] w1 w2 "


def test_a_slow_answer_pauses_before_each_event(engine: Any) -> None:
    began = time.monotonic()
    assert engine.chat(stream=True, x_mock="slow=20").body.endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - began >= 5 * 0.02


def test_garbage_is_framed_as_it_should_be(engine: Any) -> None:
    whole = engine.chat(x_mock="garbage")
    assert whole.status == 200
    with pytest.raises(ValueError, match=r"decode|JSON"):
        json.loads(whole.body)
    events = engine.chat(stream=True, x_mock="garbage").body.split(b"\n\n")
    assert events.pop() == b""
    assert len(events) == 5
    for event in events:
        with pytest.raises(ValueError, match=r"decode|JSON"):
            json.loads(event.removeprefix(b"data: "))


@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_can_end_without_an_answer(engine: Any, eventually: Any, stream: bool) -> None:
    with pytest.raises(ConnectionResetError):
        exchange(engine, "reset", stream=stream)
    assert exchange(engine, "bad-http", stream=stream).endswith(b"this is no HTTP\r\n\r\n")
    with pytest.raises(http.client.BadStatusLine):
        engine.chat(stream=stream, x_mock="bad-http")
    assert eventually(lambda: engine.app.stats.finished == 3)
    assert engine.app.stats.started == 3


@pytest.mark.parametrize("fault", ["die-after=2", "cut-after=2"])
def test_an_answer_can_end_in_its_middle(engine: Any, fault: str) -> None:
    events = b"".join(http_chunks(exchange(engine, fault, stream=True))).split(b"\n\n")
    whole = b"".join(http_chunks(exchange(engine, "burst=1", stream=True))).split(b"\n\n")
    assert events[:2] == whole[:2]
    assert events[2] == (b"" if fault == "die-after=2" else whole[2][: len(whole[2]) // 2 + 1])
    with pytest.raises(http.client.IncompleteRead):
        engine.chat(x_mock=fault)


def test_a_default_fault_lasts_until_it_is_taken_back_and_a_header_goes_first(engine: Any) -> None:
    assert engine.post("/fault", {"x-mock": "status=500"}).status == 200
    assert [engine.chat().status for _ in range(2)] == [500, 500]
    assert engine.post("/tokenize", {"prompt": "a"}).status == 500
    assert engine.chat(x_mock="status=418").status == 418
    assert engine.get("/health").status == 200
    assert engine.post("/fault", {}).status == 200
    assert engine.chat().status == 200


def test_a_fault_for_once_strikes_once(engine: Any) -> None:
    engine.post("/fault", {"x-mock": "once:status=500"})
    assert [engine.chat().status for _ in range(2)] == [500, 200]
    # A second request of an id is a retry.
    assert [engine.chat(x_mock="once:status=500", x_request_id="a").status for _ in range(2)] == [500, 200]
    assert engine.chat(x_mock="once:status=500", x_request_id="b").status == 500


@pytest.mark.parametrize("fault", ["explode", "slow", "slow=x", "split=3", "status=-1", "once:"])
def test_an_unknown_fault_is_refused(engine: Any, fault: str) -> None:
    assert engine.post("/fault", {"x-mock": fault}).status == 400
    refused = engine.chat(x_mock=fault)
    assert refused.status == 400
    assert "cut-after=N" in refused.json["error"]["message"]
    assert engine.chat().status == 200


@pytest.mark.parametrize(("fault", "stream"), [("hang", True), ("hang", False), ("hold-after=1", False)])
def test_a_held_answer_waits_for_its_release(engine: Any, eventually: Any, fault: str, stream: bool) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)) as connection:
        body = json.dumps({"model": MODEL, "max_tokens": 3, "stream": stream})
        connection.request("POST", "/v1/completions", body, {"x-mock": fault})
        assert eventually(lambda: engine.app.stats.started == 1)
        assert engine.app.stats.finished == 0
        engine.post("/release")
        assert b"w2" in connection.getresponse().read()
    assert eventually(lambda: engine.app.stats.finished == 1)


def test_a_client_that_leaves_is_noticed_while_its_answer_waits(engine: Any, eventually: Any) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)) as connection:
        connection.request("POST", "/v1/completions", b'{"prompt":"a b"}', {"x-mock": "hang", "x-request-id": "gone"})
        running = b'vllm:num_requests_running{engine="0",model_name="tiny:fast"} 1.0'
        assert eventually(lambda: running in engine.get("/metrics").body)
    assert eventually(lambda: engine.app.stats.aborted == 1)
    metrics = engine.get("/metrics").body.decode()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny:fast"} 0.0' in metrics
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny:fast"} 0.0' in metrics
    [entry] = engine.get("/log").json["requests"]
    assert (entry["request_id"], entry["fault"], entry["outcome"]) == ("gone", "hang", "aborted")


def test_a_client_that_leaves_an_unpaced_stream_is_noticed(engine: Any, eventually: Any) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as connection:
        body = b'{"max_tokens":100000,"stream":true}'
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert connection.recv(100)
    assert eventually(lambda: engine.app.stats.aborted == 1)


def test_every_request_is_remembered_with_its_id(engine: Any) -> None:
    for request_id in ("a", "b", "a"):
        engine.chat(x_request_id=request_id)
    engine.post("/tokenize", {"prompt": "a"})
    engine.chat(x_request_id="c", x_mock="status=500")
    assert engine.get("/requests").json == {"a": 2, "b": 1, "c": 1}
    entries = engine.get("/log?limit=2").json["requests"]
    assert [(entry["path"], entry["request_id"], entry["fault"], entry["outcome"]) for entry in entries] == [
        ("/tokenize", "", "", "finished"),
        ("/v1/chat/completions", "c", "status=500", "finished"),
    ]
    assert len(engine.get("/log").json["requests"]) == 5
    assert engine.get("/stats").json["started"] == 5


def test_a_loading_engine_answers_503_until_it_is_released(serve: Any) -> None:
    engine = serve(loading=math.inf)
    for path in ("/health", "/v1/models", "/metrics"):
        assert engine.get(path).status == 503
    assert engine.chat().status == 503
    assert engine.app.stats.started == 0
    engine.post("/release-loading")
    assert (engine.get("/health").status, engine.chat().status) == (200, 200)


def test_loading_ends_by_itself(serve: Any, eventually: Any) -> None:
    engine = serve(loading=0.2)
    assert engine.get("/health").status == 503
    assert eventually(lambda: engine.get("/health").status == 200)
