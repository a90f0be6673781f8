"""A client that leaves stops the engine's work within a second, in every phase, and frees its slot."""

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
PHASES = {
    "before the stream's head": (True, "hang", b""),
    "before the stream's first token": (True, "hold-after=0", b""),
    "in the middle of a stream": (True, "hold-after=3", b"w2 "),
    "not streamed, before the head": (False, "hang", b""),
    "not streamed, within the body": (False, "hold-after=1", b""),
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
    status = "200" if sign else "499"
    assert eventually(lambda: stack.metric("twinspeed_router_requests_total", variant="fast", status=status) == 1)
    assert stack.metric("twinspeed_router_client_disconnects_total") == 1
    assert stack.router.post("/v1/chat/completions", body).status == 200
    assert stack.metric("twinspeed_router_client_disconnects_total") == 1


def test_a_client_that_leaves_while_it_sends_reaches_no_engine(stack: Any) -> None:
    with socket.create_connection(("127.0.0.1", stack.router.port)) as connection:
        connection.sendall(raw_request(b'{"model":"acme/tiny-7b"}', "hang")[:-5])
    assert stack.router.post("/v1/chat/completions", {"model": NAME, "messages": []}).status == 200
    assert stack.apps["standard"].stats.started == 1


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
    assert eventually(lambda: stack.metric("twinspeed_router_client_disconnects_total") == 30)
    assert eventually(lambda: not stack.router.router.gateway.exchanges)
