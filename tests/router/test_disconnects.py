"""A client that leaves stops the engine's work within a second, in every phase, and frees its slot."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from router.app import create_app
from router.config import parse_config

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
PHASES = {
    "before the stream's head": (True, "hang", b""),
    "before the stream's first token": (True, "hold-after=0", b"\r\n\r\n"),
    "in the middle of a stream": (True, "hold-after=3", b"w2 "),
    "not streamed, before the head": (False, "hang", b""),
    "not streamed, within the body": (False, "hold-after=1", b'"object"'),
}


def raw_request(body: bytes, fault: str) -> bytes:
    head = f"host: r\r\nx-mock: {fault}\r\ncontent-length: {len(body)}\r\n\r\n"
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + body


@pytest.mark.parametrize(("stream", "fault", "sign"), PHASES.values(), ids=PHASES)
def test_the_engines_work_is_aborted(
    stack: Any, eventually: Callable[..., bool], stream: bool, fault: str, sign: bytes
) -> None:
    body = json.dumps({"model": f"{NAME}:fast", "messages": [], "max_tokens": 9, "stream": stream}).encode()
    stats = stack.apps["fast"].stats
    with socket.create_connection(("127.0.0.1", stack.router.port), timeout=5) as connection:
        connection.sendall(raw_request(body, fault))
        seen = b""
        while sign not in seen:
            seen += connection.recv(65536)
        assert eventually(lambda: stats.started == 1)
        assert stack.metric("twinspeed_router_in_flight", variant="fast") == 1
        assert stats.aborted == 0
    assert eventually(lambda: stats.aborted == 1)
    assert eventually(lambda: stack.metric("twinspeed_router_in_flight", variant="fast") == 0)
    assert stack.metric("twinspeed_router_client_disconnects_total", variant="fast") == 1
    status = "200" if sign else "499"
    assert stack.metric("twinspeed_router_requests_total", variant="fast", status=status) == 1
    assert stack.router.post("/v1/chat/completions", body).status == 200
    assert stack.metric("twinspeed_router_client_disconnects_total", variant="fast") == 1


def test_a_client_that_leaves_while_it_sends_reaches_no_engine(stack: Any, eventually: Callable[..., bool]) -> None:
    with socket.create_connection(("127.0.0.1", stack.router.port)) as connection:
        connection.sendall(raw_request(b'{"model":"acme/tiny-7b"}', "hang")[:-5])
    counted = {"variant": "none", "status": "499"}
    assert eventually(lambda: stack.metric("twinspeed_router_requests_total", **counted) == 1)
    assert stack.apps["standard"].stats.started == 0


def test_many_that_leave_at_once_leave_no_load(stack: Any, eventually: Callable[..., bool]) -> None:
    body = json.dumps({"model": NAME, "messages": [], "stream": True}).encode()
    connections = [socket.create_connection(("127.0.0.1", stack.router.port)) for _ in range(30)]
    for index, connection in enumerate(connections):
        connection.sendall(raw_request(body, "hang" if index % 2 else "hold-after=1"))
    stats = stack.apps["standard"].stats
    assert eventually(lambda: stats.started == 30, 5)
    for connection in connections:
        connection.close()
    assert eventually(lambda: stats.aborted == 30)
    assert eventually(lambda: stack.metric("twinspeed_router_in_flight", variant="standard") == 0)
    assert stack.metric("twinspeed_router_client_disconnects_total", variant="standard") == 30


@pytest.mark.parametrize("alive", [True, False])
def test_the_end_of_a_complete_answer_is_no_disconnect(stack: Any, alive: bool) -> None:
    # ASGI lets a server report `http.disconnect` while the last `send` has yet to return.
    if not alive:
        stack.engines["standard"].stop()
    app = create_app(parse_config(NAME, [f"standard={stack.engines['standard'].url}"]))
    statuses: list[int] = []

    async def drive(body: bytes) -> list[str]:
        answered = asyncio.Event()
        requests = [{"type": "http.request", "body": body, "more_body": False}]
        metrics: list[str] = []

        async def receive() -> dict[str, Any]:
            if requests:
                return requests.pop()
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            elif scope["path"] == "/metrics":
                metrics.extend(message.get("body", b"").decode().splitlines())
            elif not message["more_body"]:
                answered.set()
                await asyncio.sleep(0.01)

        scope: dict[str, Any] = {"type": "http", "method": "POST", "query_string": b"", "headers": []}
        scope["path"] = "/v1/chat/completions"
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)
            scope = {**scope, "method": "GET", "path": "/metrics"}
            await app(scope, receive, send)
        return metrics

    metrics = asyncio.run(drive(json.dumps({"model": NAME, "messages": []}).encode()))
    assert statuses == [200 if alive else 503, 200]
    assert 'twinspeed_router_client_disconnects_total{variant="standard"} 0.0' in metrics
