"""What is tried again, where, how often, and what is never sent twice."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
REQUEST = {"model": f"{NAME}:fast", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


def started(stack: Any) -> list[int]:
    return [app.stats.started for name, app in stack.apps.items() if name.startswith("fast")]


@pytest.mark.parametrize("stream", [False, True])
def test_the_next_try_goes_to_another_replica(start_stack: Callable[..., Any], stream: bool) -> None:
    def patient(config: dict[str, Any]) -> None:
        config["breaker"]["failures"] = 100
        config["retries"] |= {"attempts": 2, "budget": 1}

    stack = start_stack(patient, replicas=2)
    for turn in range(1, 5):
        answer = stack.router.post(CHAT, REQUEST | {"stream": stream}, {"x-mock": "die-after=0"})
        assert (answer.status, answer.json["error"]["code"]) == (503, "variant_unavailable")
        assert started(stack) == [turn, turn]


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429])
def test_a_clients_fault_is_answered_once_and_opens_no_breaker(start_stack: Callable[..., Any], status: int) -> None:
    stack = start_stack(lambda config: config["breaker"].update(failures=2))
    for _ in range(6):
        assert stack.router.post(CHAT, REQUEST, {"x-mock": f"status={status}"}).status == status
    assert started(stack) == [6]
    assert stack.router.post(CHAT, REQUEST).status == 200


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_engines_fault_is_tried_again_and_its_last_answer_passes(
    start_stack: Callable[..., Any], status: int
) -> None:
    stack = start_stack(lambda config: config["breaker"].update(failures=100))
    direct = stack.engines["fast"].post(CHAT, REQUEST, {"x-mock": f"status={status}"})
    answer = stack.router.post(CHAT, REQUEST, {"x-mock": f"status={status}"})
    assert (answer.status, answer.body) == (status, direct.body)
    assert started(stack) == [4]


def test_nothing_is_tried_again_once_the_client_has_seen_a_byte(paced_stack: Any) -> None:
    answer = paced_stack.router.post(CHAT, REQUEST | {"stream": True}, {"x-mock": "die-after=1"})
    assert b'"code": "variant_failed"' in answer.body
    assert started(paced_stack) == [1]


def test_retries_are_a_share_of_the_requests(start_stack: Callable[..., Any]) -> None:
    def frugal(config: dict[str, Any]) -> None:
        config["retries"] |= {"budget": 0.1, "backoff": 0.001}
        config["breaker"]["failures"] = 10_000

    stack = start_stack(frugal)
    for _ in range(100):
        assert stack.router.post(CHAT, REQUEST, {"x-mock": "status=500"}).status == 500
    # A tenth of a hundred, and ten at once after a quiet time.
    assert 110 <= started(stack)[0] <= 121


def test_a_breaker_opens_keeps_requests_away_and_closes_after_a_trial(
    start_stack: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    def touchy(config: dict[str, Any]) -> None:
        config["breaker"] |= {"failures": 3, "open_for": 0.5}
        config["retries"]["attempts"] = 1

    stack = start_stack(touchy)
    for _ in range(3):
        assert stack.router.post(CHAT, REQUEST, {"x-mock": "status=500"}).status == 500
    refused = stack.router.post(CHAT, REQUEST)
    assert (refused.status, refused.json["error"]["code"]) == (503, "variant_unavailable")
    assert started(stack) == [3]
    assert stack.router.post(CHAT, REQUEST | {"model": f"{NAME}:standard"}).status == 200
    assert eventually(lambda: stack.router.post(CHAT, REQUEST).status == 200, 3)
    assert stack.router.post(CHAT, REQUEST).status == 200


def test_a_failed_trial_opens_the_breaker_again(
    start_stack: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    def touchy(config: dict[str, Any]) -> None:
        config["breaker"] |= {"failures": 1, "open_for": 0.3}
        config["retries"]["attempts"] = 1

    stack = start_stack(touchy)
    fail = {"x-mock": "status=500"}
    assert stack.router.post(CHAT, REQUEST, fail).status == 500
    assert eventually(lambda: stack.router.post(CHAT, REQUEST, fail).status == 500, 3)
    assert stack.router.post(CHAT, REQUEST, fail).status == 503
    assert started(stack) == [2]


def test_a_replica_that_fails_gets_nothing_and_the_other_serves_all(start_stack: Callable[..., Any]) -> None:
    stack = start_stack(replicas=2)
    stack.engines["fast"].stop()
    assert [stack.router.post(CHAT, REQUEST).status for _ in range(20)] == [200] * 20


def test_a_hedge_answers_where_the_first_replica_hangs(
    start_stack: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    stack = start_stack(lambda config: config["retries"].update(hedge_after=0.1), replicas=2)
    names = ["fast", "fast-2"]
    hung = threading.Thread(target=lambda: stack.router.post(CHAT, REQUEST, {"x-mock": "hang"}))
    # Both legs of this one hang, until one is let go.
    hung.start()
    assert eventually(lambda: started(stack) == [1, 1])
    stack.engines["fast-2"].request("POST", "/release")
    hung.join()
    assert eventually(lambda: stack.apps["fast"].stats.aborted == 1)
    assert [stack.apps[name].stats.finished for name in names] == [0, 1]
    assert stack.metric("twinspeed_router_in_flight", variant="fast") == 0
    before = time.monotonic()
    assert stack.router.post(CHAT, REQUEST).status == 200
    assert time.monotonic() - before < 0.5
