"""One Idempotency-Key, one request: made once, answered alike, and never mixed up with another."""

import base64
import http.client
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
REQUEST = {"model": f"{NAME}:fast", "messages": [], "max_tokens": 3}
KEY = {"idempotency-key": "order-66"}


def started(stack: Any) -> int:
    return int(stack.apps["fast"].stats.started)


def test_a_request_sent_again_is_answered_alike_and_made_once(stack: Any) -> None:
    first, second = (stack.router.post(CHAT, REQUEST, KEY) for _ in range(2))
    assert (second.status, second.body) == (200, first.body)
    assert second.headers["x-request-id"] == first.headers["x-request-id"]
    assert started(stack) == 1
    assert stack.router.post(CHAT, REQUEST, {"idempotency-key": "another"}).status == 200
    assert stack.router.post(CHAT, REQUEST).status == 200
    assert started(stack) == 3


def test_those_that_come_meanwhile_wait_for_the_first(stack: Any, eventually: Callable[..., bool]) -> None:
    bodies: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: bodies.append(stack.router.post(CHAT, REQUEST, KEY | {"x-mock": "hang"}).body))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    assert eventually(lambda: started(stack) == 1)
    stack.engines["fast"].request("POST", "/release")
    for thread in threads:
        thread.join()
    assert len(set(bodies)) == 1
    assert started(stack) == 1


def test_another_request_under_the_same_key_is_refused(stack: Any) -> None:
    stack.router.post(CHAT, REQUEST, KEY)
    refused = stack.router.post(CHAT, REQUEST | {"max_tokens": 4}, KEY)
    assert (refused.status, refused.json["error"]["code"]) == (422, "idempotency_key_reused")
    assert stack.router.post(CHAT, REQUEST, {"idempotency-key": "k" * 256}).status == 400


@pytest.mark.parametrize("fault", ["status=400", "status=500", "die-after=0"])
def test_what_failed_can_be_tried_again(stack: Any, fault: str) -> None:
    assert stack.router.post(CHAT, REQUEST, KEY | {"x-mock": fault}).status >= 400
    before = started(stack)
    assert stack.router.post(CHAT, REQUEST, KEY).status == 200
    assert started(stack) == before + 1


def test_a_stream_is_never_sent_a_second_time(stack: Any) -> None:
    stream = REQUEST | {"stream": True}
    assert stack.router.post(CHAT, stream, KEY).body.endswith(b"data: [DONE]\n\n")
    refused = stack.router.post(CHAT, stream, KEY)
    assert (refused.status, refused.json["error"]["code"]) == (409, "idempotency_key_in_use")
    assert started(stack) == 1


def test_the_client_that_made_the_request_may_leave_and_another_gets_an_answer(
    stack: Any, eventually: Callable[..., bool]
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", stack.router.port)
    connection.request("POST", CHAT, json.dumps(REQUEST), KEY | {"x-mock": "hang"})
    assert eventually(lambda: started(stack) == 1)
    connection.close()
    assert eventually(lambda: stack.apps["fast"].stats.aborted == 1)
    assert stack.router.post(CHAT, REQUEST, KEY).status == 200
    assert json.loads(base64.b64decode(stack.apps["fast"].stats.last_body))["max_tokens"] == 3
