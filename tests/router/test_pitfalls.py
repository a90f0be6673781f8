"""What has hurt users of gateways elsewhere, and no other file here is about."""

import base64
import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
REQUEST = {"model": f"{NAME}:fast", "messages": [], "max_tokens": 3}


def test_more_requests_than_any_pools_default_run_at_once(
    start_stack: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    """Connection pools that stop at 100 turn the 101st user's first token into somebody else's last."""
    stack = start_stack(lambda config: config["models"][0]["variants"]["fast"].update(max_in_flight=1000))
    connections = [http.client.HTTPConnection("127.0.0.1", stack.router.port, timeout=20) for _ in range(300)]
    for connection in connections:
        connection.request("POST", CHAT, json.dumps(REQUEST | {"stream": True}), {"x-mock": "hold-after=1"})
    assert eventually(lambda: stack.apps["fast"].stats.started == 300, 20)
    assert stack.metric("twinspeed_router_in_flight", variant="fast") == 300
    for connection in connections:
        connection.close()
    assert eventually(lambda: stack.metric("twinspeed_router_in_flight", variant="fast") == 0, 10)


def test_requests_with_large_images_hold_nobody_else_up(start_stack: Callable[..., Any]) -> None:
    stack = start_stack()
    image = base64.b64encode(bytes(1_500_000)).decode()
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": 2}).encode()
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(stack.router.post(CHAT, body).status)) for _ in range(40)
    ]
    slowest = 0.0
    for thread in threads:
        thread.start()
        before = time.monotonic()
        assert stack.router.post(CHAT, REQUEST).status == 200
        slowest = max(slowest, time.monotonic() - before)
    for thread in threads:
        thread.join()
    assert statuses == [200] * 40
    # All of this shares one interpreter, the engine and the clients too.
    assert slowest < 3


def test_a_replica_that_loads_gets_nothing_until_it_is_ready(
    start_stack: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    stack = start_stack(loading=float("inf"))
    refused = stack.router.post(CHAT, REQUEST)
    assert (refused.status, refused.json["error"]["code"]) == (503, "variant_unavailable")
    stack.engines["fast"].request("POST", "/release-loading")
    assert eventually(lambda: stack.ready("fast"), 3)
    assert stack.router.post(CHAT, REQUEST).status == 200
    assert stack.apps["fast"].stats.started == 1


def test_what_is_busy_makes_wait_and_then_serves_in_order(
    start_stack: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    def narrow(config: dict[str, Any]) -> None:
        config["models"][0]["variants"]["fast"]["max_in_flight"] = 1
        config["lanes"]["interactive"] |= {"queue": 3, "max_wait": 20}

    stack = start_stack(narrow)
    answers: list[Any] = []

    def ask(headers: dict[str, str]) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.append(stack.router.post(CHAT, REQUEST, headers)))
        thread.start()
        return thread

    def waiting() -> float:
        return stack.metric("twinspeed_router_queued", lane="interactive") or 0

    threads = [ask({"x-mock": "hang", "x-request-id": "first"})]
    assert eventually(lambda: stack.apps["fast"].stats.started == 1)
    for name, patience in (("late", "9000"), ("soon", "1000"), ("later", "20000")):
        before = waiting()
        threads.append(ask({"x-slo-ttft-ms": patience, "x-request-id": name}))
        assert eventually(lambda before=before: waiting() == before + 1)
    full = stack.router.post(CHAT, REQUEST)
    assert (full.status, full.json["error"]["code"], full.headers["retry-after"]) == (429, "lane_full", "1")
    stack.engines["fast"].request("POST", "/release")
    for thread in threads:
        thread.join()
    assert [answer.headers["x-request-id"] for answer in answers] == ["first", "soon", "late", "later"]
    assert waiting() == 0


def test_a_request_whose_client_left_the_queue_reaches_no_engine(
    start_stack: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    stack = start_stack(lambda config: config["models"][0]["variants"]["fast"].update(max_in_flight=1))
    holder = threading.Thread(target=lambda: stack.router.post(CHAT, REQUEST, {"x-mock": "hang"}))
    holder.start()
    assert eventually(lambda: stack.apps["fast"].stats.started == 1)
    connection = http.client.HTTPConnection("127.0.0.1", stack.router.port)
    connection.request("POST", CHAT, json.dumps(REQUEST))
    assert eventually(lambda: stack.metric("twinspeed_router_queued", lane="interactive") == 1)
    connection.close()
    assert eventually(lambda: stack.metric("twinspeed_router_queued", lane="interactive") == 0)
    stack.engines["fast"].request("POST", "/release")
    holder.join()
    assert stack.router.post(CHAT, REQUEST).status == 200
    assert stack.apps["fast"].stats.started == 2


def test_a_session_stays_on_its_replica_and_prefixes_find_theirs(start_stack: Callable[..., Any]) -> None:
    stack = start_stack(replicas=2)

    def replica(headers: dict[str, str], text: str) -> str:
        body = REQUEST | {"messages": [{"role": "user", "content": text}]}
        return str(stack.router.post(CHAT, body, headers).headers["x-twinspeed-replica"])

    for number in range(6):
        session = {"x-session-id": f"s{number}"}
        assert len({replica(session, f"turn {turn}") for turn in range(4)}) == 1
        assert len({replica({}, f"prefix {number}") for _ in range(4)}) == 1
    assert len({replica({}, f"prefix {number}") for number in range(20)}) == 2


@pytest.mark.parametrize(
    ("fields", "headers", "code"),
    [
        ({"service_tier": "gold"}, {}, "invalid_value"),
        ({"service_tier": 5}, {}, "invalid_value"),
        ({}, {"x-twinspeed-lane": "express"}, "invalid_value"),
        ({}, {"x-slo-ttft-ms": "soon"}, "invalid_value"),
        ({}, {"x-max-cost-usd": "-1"}, "invalid_value"),
        ({}, {"x-max-cost-usd": "nan"}, "invalid_value"),
    ],
)
def test_a_wrong_wish_is_refused_by_name(stack: Any, fields: Any, headers: dict[str, str], code: str) -> None:
    refused = stack.router.post(CHAT, REQUEST | fields, headers)
    assert (refused.status, refused.json["error"]["code"]) == (400, code)
    assert refused.json["error"]["param"] in refused.json["error"]["message"]


def test_a_request_that_would_cost_too_much_is_refused(start_stack: Callable[..., Any]) -> None:
    def priced(config: dict[str, Any]) -> None:
        for variant in config["models"][0]["variants"].values():
            variant["usd_per_hour"] = 3.6

    stack = start_stack(priced)
    refused = stack.router.post(CHAT, REQUEST, {"x-max-cost-usd": "0.000000001"})
    assert (refused.status, refused.json["error"]["code"]) == (400, "max_cost_exceeded")
    assert stack.router.post(CHAT, REQUEST, {"x-max-cost-usd": "1"}).status == 200


def test_what_speculation_cannot_do_goes_to_a_variant_that_does_not_speculate(start_stack: Callable[..., Any]) -> None:
    stack = start_stack(lambda config: config["models"][0]["variants"]["fast"].update(speculates=True))
    for field in ({"min_p": 0.1}, {"logit_bias": {"1": -100}}):
        refused = stack.router.post(CHAT, REQUEST | field)
        assert (refused.status, refused.json["error"]["code"]) == (400, "capability_not_supported")
        assert stack.router.post(CHAT, REQUEST | field | {"model": NAME}).headers["x-twinspeed-variant"] == "standard"
    assert stack.router.post(CHAT, REQUEST | {"min_p": 0, "logit_bias": {}}).status == 200
