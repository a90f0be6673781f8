"""Dead, dying and silent engines: an error that says so, and never a part taken for the whole."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"


def request(variant: str, **fields: Any) -> dict[str, Any]:
    return {"model": f"{NAME}:{variant}", "messages": [], "max_tokens": 5, **fields}


def test_a_dead_variant_is_refused_the_other_serves_and_the_first_comes_back(
    stack: Any, eventually: Callable[..., bool]
) -> None:
    assert stack.router.post(CHAT, request("fast")).status == 200
    stack.engines["fast"].stop()
    refused = stack.router.post(CHAT, request("fast"))
    assert refused.status == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["content-type"] == "application/json"
    error = refused.json["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "variant_unavailable", None)
    assert "fast" in error["message"]
    assert stack.router.post(CHAT, request("standard")).status == 200
    stack.restart("fast")
    assert eventually(lambda: stack.ready("fast"), 3)
    assert stack.router.post(CHAT, request("fast")).status == 200
    assert stack.metric("twinspeed_router_in_flight", variant="fast") == 0


def test_an_engine_that_says_nothing_in_time_is_a_504(start_stack: Callable[..., Any]) -> None:
    def impatient(config: dict[str, Any]) -> None:
        config["lanes"]["interactive"]["timeouts"] |= {"first_byte": 0.1, "between_bytes": 0.1}

    stack = start_stack(impatient)
    late = stack.router.post(CHAT, request("standard"), {"x-mock": "hang"})
    assert (late.status, late.json["error"]["type"], late.json["error"]["code"]) == (
        504,
        "server_error",
        "variant_timeout",
    )
    assert late.headers["x-twinspeed-variant"] == "standard"
    stalled = stack.router.post(CHAT, request("standard", stream=True), {"x-mock": "hold-after=2"})
    assert json.loads(stalled.body.split(b"\n\n")[2].removeprefix(b"data: "))["error"]["code"] == "variant_timeout"
    # A request that may still run is not sent a second time.
    assert stack.apps["standard"].stats.started == 2


def test_each_lane_has_its_own_patience(start_stack: Callable[..., Any]) -> None:
    def impatient(config: dict[str, Any]) -> None:
        config["lanes"]["interactive"]["timeouts"]["first_byte"] = 0.1

    stack = start_stack(impatient, ttft=0.8)
    assert stack.router.post(CHAT, request("fast")).status == 504
    assert stack.router.post(CHAT, request("fast"), {"x-twinspeed-lane": "rollout"}).status == 200


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
        with pytest.raises(openai.APIError, match="Variant standard failed") as failure:
            next(stream)
    assert failure.value.code == "variant_failed"


def test_an_answer_whose_engine_dies_is_tried_again_and_then_refused(stack: Any) -> None:
    refused = stack.router.post(CHAT, request("fast"), {"x-mock": "die-after=1"})
    assert (refused.status, refused.json["error"]["code"]) == (503, "variant_unavailable")
    assert stack.apps["fast"].stats.started == 3
    assert stack.metric("twinspeed_router_retries_total") == 2
    assert stack.metric("twinspeed_router_in_flight", variant="fast") == 0
    assert stack.metric("twinspeed_router_client_disconnects_total") == 0
    assert stack.router.post(CHAT, request("fast")).status == 200


def test_a_fault_of_the_router_itself_is_a_500_and_holds_nothing(stack: Any, eventually: Callable[..., bool]) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    stack.router.router.gateway.table.entries[NAME].model.expected_usage = broken
    stack.router.router.gateway.table.entries[NAME].model.choose = broken
    failed = stack.router.post(CHAT, request("fast"))
    assert (failed.status, failed.json["error"]["code"]) == (500, "internal_server_error")
    assert "planted" not in failed.body.decode()
    assert eventually(lambda: not stack.router.router.gateway.exchanges)
    assert stack.router.request("GET", "/health").status == 200
