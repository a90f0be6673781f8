"""Models, health, metrics, and OpenAI's error shape wherever a request is refused."""

import socket
from collections.abc import Callable
from typing import Any

import openai
import pytest
from fastapi import FastAPI

from router.api import use_openai_errors
from tests.servers import AppServer

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"


def assert_openai_error(answer: Any, status: int, code: str) -> str:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["code"] == code
    return str(error["message"])


def test_lists_the_name_and_every_pin(stack: Any) -> None:
    with openai.OpenAI(base_url=f"{stack.router.url}/v1", api_key="x", max_retries=0, timeout=5) as api:
        models = api.models.list().data
        one = api.models.retrieve(f"{NAME}:fast")
        with pytest.raises(openai.NotFoundError, match="other"):
            api.models.retrieve("other")
    ids = [NAME, *(f"{NAME}:{suffix}" for suffix in ("standard", "fast", "floor", "nitro"))]
    assert [model.id for model in models] == ids
    assert {(model.object, model.owned_by) for model in models} == {("model", "twinspeed")}
    assert one == models[2]
    assert stack.router.request("GET", f"/v1/models/{NAME}").json["id"] == NAME


def test_health_tells_how_many_replicas_are_ready(stack: Any, eventually: Callable[..., bool]) -> None:
    healthy = stack.router.request("GET", "/health")
    assert (healthy.status, healthy.json) == (200, {"status": "ok", "models": {NAME: {"standard": 1, "fast": 1}}})
    stack.engines["fast"].stop()
    assert eventually(lambda: not stack.ready("fast"), 3)
    assert stack.ready("standard")


def test_a_silent_engine_gets_nothing_and_holds_nothing_up(start_router: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        router = start_router(f"standard=http://127.0.0.1:{silent.getsockname()[1]}")
        assert router.request("GET", "/health").json["models"] == {NAME: {"standard": 0}}
        refused = router.post(CHAT, {"model": NAME, "messages": []})
    assert_openai_error(refused, 503, "variant_unavailable")
    assert int(refused.headers["retry-after"]) >= 1


def test_metrics_count_by_variant_and_status(stack: Any) -> None:
    for _ in range(2):
        stack.router.post(CHAT, {"model": f"{NAME}:fast", "messages": [], "stream": True})
    stack.router.post(CHAT, {"model": f"{NAME}:fast"}, {"x-mock": "status=429"})
    stack.router.post(CHAT, {"model": "other"})
    requests = "twinspeed_router_requests_total"
    assert stack.metric(requests, model=NAME, variant="fast", status="200") == 2
    assert stack.metric(requests, model=NAME, variant="fast", status="429") == 1
    assert stack.metric(requests, model="none", variant="none", status="404") == 1
    assert stack.metric("twinspeed_router_time_to_first_byte_seconds_count", variant="fast") == 3
    assert stack.metric("twinspeed_router_request_seconds_count", variant="fast") == 3
    assert stack.metric("twinspeed_router_in_flight", variant="fast") == 0


def test_two_routers_do_not_share_counts(stack: Any, start_router: Callable[..., Any]) -> None:
    other = start_router(f"standard={stack.engines['standard'].url}")
    other.post(CHAT, {"model": NAME, "messages": []})
    assert stack.metric("twinspeed_router_requests_total", variant="standard", status="200") is None


@pytest.mark.parametrize("model", ["other", f"{NAME}:turbo", "", "\ud800"])
def test_an_unknown_model_is_refused_and_the_known_are_named(stack: Any, model: str) -> None:
    answer = stack.router.post(CHAT, {"model": model, "messages": []})
    message = assert_openai_error(answer, 404, "model_not_found")
    assert f"`{model}`" in message
    assert message.endswith(f"{NAME}, {NAME}:standard, {NAME}:fast, {NAME}:floor, {NAME}:nitro.")
    assert answer.json["error"]["param"] == "model"
    assert answer.headers["x-request-id"]
    assert [app.stats.started for app in stack.apps.values()] == [0, 0]


@pytest.mark.parametrize("body", [b"", b"{", b'\xef\xbb\xbf{"model":"m"}', b"[]", b'{"model":1}', b"{}"])
def test_a_body_that_is_no_request_is_a_400(stack: Any, body: bytes) -> None:
    assert_openai_error(stack.router.post(CHAT, body), 400, "invalid_body")


def test_unknown_paths_and_methods(stack: Any) -> None:
    assert_openai_error(stack.router.request("GET", "/nowhere"), 404, "not_found")
    assert_openai_error(stack.router.request("POST", f"{CHAT}/", b"{}"), 404, "not_found")
    wrong = stack.router.request("GET", CHAT)
    assert_openai_error(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


def test_validation_and_unexpected_errors_have_the_shape_too() -> None:
    app = FastAPI()
    use_openai_errors(app)

    @app.get("/number/{number}")
    async def number(number: int) -> float:
        return 1 / number

    server = AppServer(app)
    invalid = server.request("GET", "/number/x")
    assert "path.number" in assert_openai_error(invalid, 422, "unprocessable_entity")
    assert "division" not in assert_openai_error(server.request("GET", "/number/0"), 500, "internal_server_error")
    server.stop()


def test_requests_above_the_limits_are_refused(start_stack: Callable[..., Any]) -> None:
    def small(config: dict[str, Any]) -> None:
        config["limits"] |= {"body_bytes": 300, "header_bytes": 2048, "messages": 3}

    router = start_stack(small).router
    assert_openai_error(
        router.post(CHAT, {"model": NAME, "messages": [{"content": "x" * 300}]}), 413, "request_too_large"
    )
    assert_openai_error(router.post(CHAT, {"model": NAME}, {"x-large": "x" * 2048}), 431, "headers_too_large")
    assert_openai_error(router.post(CHAT, {"model": NAME, "messages": [{}] * 4}), 400, "too_many_messages")
    assert router.post(CHAT, {"model": NAME, "messages": [{}] * 3}).status == 200
