"""Models, health, metrics, and OpenAI's error shape wherever a request is refused."""

import socket
from collections.abc import Callable
from typing import Any

import openai
import pytest
from fastapi import FastAPI

import router.forward
from router.app import create_app
from router.config import parse_config

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
    assert [model.id for model in models] == [NAME, f"{NAME}:standard", f"{NAME}:fast"]
    assert {(model.object, model.owned_by) for model in models} == {("model", "twinspeed")}
    assert one == models[2]
    assert stack.router.request("GET", f"/v1/models/{NAME}").json["id"] == NAME


def test_health_is_ok_whatever_the_engines_are(stack: Any) -> None:
    healthy = stack.router.request("GET", "/health")
    assert (healthy.status, healthy.json) == (
        200,
        {"status": "ok", "variants": {"standard": "up", "fast": "up"}},
    )
    stack.engines["fast"].stop()
    assert stack.router.request("GET", "/health").json["variants"] == {"standard": "up", "fast": "down"}


def test_a_silent_engine_is_down_and_does_not_hold_health(
    start_router: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.app._PROBE_TIMEOUT", router.forward.ClientTimeout(total=0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        answer = start_router(f"standard={url}", f"fast={url}").request("GET", "/health")
    assert answer.json == {"status": "ok", "variants": {"standard": "down", "fast": "down"}}


def test_metrics_count_by_variant_and_status(stack: Any) -> None:
    for _ in range(2):
        stack.router.post(CHAT, {"model": f"{NAME}:fast", "messages": [], "stream": True})
    stack.router.post(CHAT, {"model": f"{NAME}:fast"}, {"x-mock": "status=429"})
    stack.router.post(CHAT, {"model": "other"})
    requests = "twinspeed_router_requests_total"
    assert stack.metric(requests, variant="fast", status="200") == 2
    assert stack.metric(requests, variant="fast", status="429") == 1
    assert stack.metric(requests, variant="none", status="404") == 1
    for name in ("time_to_first_byte_seconds", "request_seconds"):
        assert stack.metric(f"twinspeed_router_{name}_count", variant="fast") == 3
        assert stack.metric(f"twinspeed_router_{name}_count", variant="standard") == 0
    assert stack.metric("twinspeed_router_in_flight", variant="fast") == 0
    assert stack.metric("twinspeed_router_client_disconnects_total", variant="fast") == 0


def test_two_apps_do_not_share_counts(stack: Any, start_router: Callable[..., Any]) -> None:
    other = start_router(f"standard={stack.engines['standard'].url}")
    other.post(CHAT, {"model": NAME, "messages": []})
    assert stack.metric("twinspeed_router_requests_total", variant="standard", status="200") is None


@pytest.mark.parametrize("model", ["other", f"{NAME}:turbo", "", "\ud800"])
def test_an_unknown_model_is_refused_and_the_known_are_named(stack: Any, model: str) -> None:
    answer = stack.router.post(CHAT, {"model": model, "messages": []})
    message = assert_openai_error(answer, 404, "model_not_found")
    assert f"`{model}`" in message
    assert message.endswith(f"{NAME}, {NAME}:standard, {NAME}:fast.")
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


def test_validation_and_unexpected_errors_have_the_shape_too(serve: Callable[[FastAPI], Any]) -> None:
    app = create_app(parse_config(NAME, ["standard=http://127.0.0.1:9"]))

    @app.get("/number/{number}")
    async def number(number: int) -> float:
        return 1 / number

    server = serve(app)
    invalid = server.request("GET", "/number/x")
    assert "path.number" in assert_openai_error(invalid, 422, "unprocessable_entity")
    assert "division" not in assert_openai_error(server.request("GET", "/number/0"), 500, "internal_server_error")


def exchange(port: int, *parts: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        for part in parts:
            connection.sendall(part)
        while data := connection.recv(65536):
            received += data
    return received


def test_a_body_above_the_limit_is_refused_unread(stack: Any) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {64 * 1024 * 1024 + 1}\r\n\r\n"
    received = exchange(stack.router.port, head.encode())
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"code": "request_too_large"' in received


def test_a_body_that_grows_above_the_limit_is_refused(stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router.forward, "BODY_LIMIT", 10)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n"
    received = exchange(stack.router.port, head.encode(), b"b\r\n01234567890\r\n")
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"code": "request_too_large"' in received
