"""Keys, limits and budgets as clients meet them; every way in which a request can end settles what it held."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.servers import wait_until

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
ADMIN_KEY = "admin-secret"
USD_PER_HOUR = 3.6


class Guarded:
    """A stack that wants keys, and the administrators' side of it."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack

    def admin(self, method: str, path: str, data: Any = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        headers = {"authorization": f"Bearer {ADMIN_KEY}", "content-type": "application/json"}
        answer = self.stack.router.admin.request(method, f"/admin{path}", body, headers)
        assert answer.status < 300, answer.body
        return answer.json

    def key(self, **settings: Any) -> dict[str, Any]:
        made: dict[str, Any] = self.admin("POST", "/keys", {"name": "test", **settings})
        return made

    def usage(self, key: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.admin("GET", f"/keys/{key['id']}/usage")
        return found

    def ask(self, key: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = {"model": f"{NAME}:fast", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
        return self.stack.router.post(CHAT, body, {"authorization": f"Bearer {key['secret']}", **(headers or {})})


@pytest.fixture
def guarded(start_stack: Callable[..., Any], tmp_path: Path) -> Guarded:
    def guard(config: dict[str, Any]) -> None:
        config["auth"] = "required"
        config["state"]["url"] = f"sqlite:///{tmp_path}/keys.sqlite3"
        config["admin"] = {"port": 0, "key_sha256": hashlib.sha256(ADMIN_KEY.encode()).hexdigest()}
        for variant in config["models"][0]["variants"].values():
            variant["usd_per_hour"] = USD_PER_HOUR

    return Guarded(start_stack(guard))


@pytest.mark.parametrize("header", [None, "Bearer ", "Bearer wrong", "Basic abc", "bearer sk-ts-" + "x" * 43])
def test_without_a_valid_key_nothing_is_served(guarded: Guarded, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    refused = guarded.stack.router.post(CHAT, {"model": NAME, "messages": []}, headers)
    assert (refused.status, refused.json["error"]["code"]) == (401, "invalid_api_key")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert guarded.stack.router.request("GET", "/v1/models", None, headers).status == 401
    assert guarded.stack.apps["standard"].stats.started == 0


def test_a_key_works_until_it_is_revoked_and_its_secret_is_shown_once(guarded: Guarded) -> None:
    key = guarded.key()
    assert guarded.ask(key).status == 200
    assert guarded.ask({"secret": ""}, {"x-api-key": key["secret"], "authorization": ""}).status == 401
    anthropic = guarded.stack.router.post(CHAT, {"model": NAME, "messages": []}, {"x-api-key": key["secret"]})
    assert anthropic.status == 200
    assert key["secret"] not in json.dumps(guarded.admin("GET", "/keys"))
    guarded.admin("DELETE", f"/keys/{key['id']}")
    assert guarded.ask(key).status == 401


def test_the_key_never_reaches_an_engine(guarded: Guarded) -> None:
    guarded.ask(guarded.key())
    sent = guarded.stack.apps["fast"].stats.last_headers
    assert not {"authorization", "x-api-key"} & {name for name, _ in sent}


def test_secrets_stay_out_of_logs_metrics_and_answers(
    start_stack: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def guard(config: dict[str, Any]) -> None:
        config["auth"] = "required"
        config["state"]["url"] = f"sqlite:///{tmp_path}/keys.sqlite3"
        config["access_log"] = str(tmp_path / "access.jsonl")
        config["admin"] = {"port": 0, "key_sha256": hashlib.sha256(ADMIN_KEY.encode()).hexdigest()}

    caplog.set_level("DEBUG")
    guarded = Guarded(start_stack(guard))
    key = guarded.key(rpm=5)
    seen = b""
    for headers in ({}, {"x-mock": "die-after=0"}, {"x-mock": "status=500"}, {"x-slo-ttft-ms": "x"}):
        seen += guarded.ask(key, headers).body
    guarded.ask({"secret": key["secret"] + "x"})
    log = tmp_path / "access.jsonl"
    assert wait_until(lambda: len(log.read_text().splitlines()) == 5, 5)
    told = [log.read_text(), caplog.text, seen.decode(), guarded.stack.router.request("GET", "/metrics").body.decode()]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("keys.sqlite3*"))
    for secret in (key["secret"], ADMIN_KEY):
        assert not any(secret in text for text in told)
        assert secret.encode() not in stored


def test_models_and_lanes_that_a_key_may_not_use_are_refused(guarded: Guarded) -> None:
    key = guarded.key(models=[f"{NAME}:fast"], lanes=["interactive"])
    assert guarded.ask(key).status == 200
    other = guarded.ask(key, model=NAME)
    assert (other.status, other.json["error"]["code"]) == (403, "model_not_allowed")
    lane = guarded.ask(key, service_tier="flex")
    assert (lane.status, lane.json["error"]["code"]) == (403, "lane_not_allowed")


def test_requests_a_minute_are_limited_and_the_client_is_told(guarded: Guarded) -> None:
    key = guarded.key(rpm=3, tpm=100_000)
    headers = [guarded.ask(key).headers for _ in range(3)]
    assert [each["x-ratelimit-remaining-requests"] for each in headers] == ["2", "1", "0"]
    assert headers[0]["x-ratelimit-limit-requests"] == "3"
    assert headers[0]["x-ratelimit-limit-tokens"] == "100000"
    refused = guarded.ask(key)
    assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_requests")
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert guarded.stack.metric("twinspeed_router_limits_refused_total", code="rate_limit_requests") == 1
    assert guarded.stack.apps["fast"].stats.started == 3


def test_what_a_stream_and_an_answer_used_is_booked_to_the_token(guarded: Guarded) -> None:
    key = guarded.key(budget_day_usd=10, tpm=100_000)
    whole = guarded.ask(key)
    streamed = guarded.ask(key, stream=True)
    asked = guarded.ask(key, stream=True, stream_options={"include_usage": True})
    assert b'"usage"' not in streamed.body
    assert b'"usage"' in asked.body
    used = whole.json["usage"]["total_tokens"]
    usage = guarded.usage(key)
    assert (usage["day_tokens"], usage["day_requests"], usage["in_flight"], usage["reserved_cost"]) == (
        used * 3,
        3,
        0,
        0,
    )
    assert usage["day_cost"] == usage["month_cost"] > 0
    assert round(float(whole.headers["x-twinspeed-cost-usd"]) * 1e9) <= usage["day_cost"]


def test_many_at_once_never_spend_more_than_the_budget(guarded: Guarded) -> None:
    """Were it checked first and spent later, all of them would pass the check."""
    alone = guarded.key()
    cost = float(guarded.ask(alone).headers["x-twinspeed-cost-usd"])
    key = guarded.key(budget_day_usd=cost * 100)
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(guarded.ask(key).status)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    usage = guarded.usage(key)
    assert usage["day_cost"] <= round(cost * 100 * 1e9)
    assert set(statuses) <= {200, 429}
    assert usage["day_requests"] == statuses.count(200) > 0
    assert (usage["in_flight"], usage["reserved_cost"]) == (0, 0)


@pytest.mark.parametrize("limit", ["concurrency", "none"])
def test_however_a_request_ends_its_place_is_free_again(
    guarded: Guarded, eventually: Callable[..., bool], limit: str
) -> None:
    key = guarded.key(**({"concurrency": 1} if limit == "concurrency" else {}))
    for stream in (False, True):
        for fault in ("status=400", "status=500", "die-after=0", "die-after=2"):
            guarded.ask(key, {"x-mock": fault}, stream=stream)
            assert guarded.usage(key)["in_flight"] == 0
    assert guarded.ask(key, model="nonsense").status == 404
    assert guarded.ask(key, service_tier="nonsense").status == 400
    assert guarded.usage(key)["in_flight"] == 0
    assert eventually(lambda: guarded.ask(key).status == 200, 8)


@pytest.mark.parametrize(("stream", "fault"), [(True, "hold-after=2"), (True, "hang"), (False, "hang")])
def test_a_client_that_vanishes_is_settled_too(
    guarded: Guarded, eventually: Callable[..., bool], stream: bool, fault: str
) -> None:
    key = guarded.key(concurrency=1)
    body = json.dumps({"model": f"{NAME}:fast", "messages": [], "max_tokens": 9, "stream": stream}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: r\r\nx-mock: {fault}\r\nauthorization: Bearer {key['secret']}\r\n"
    with socket.create_connection(("127.0.0.1", guarded.stack.router.port)) as connection:
        connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert eventually(lambda: guarded.usage(key)["in_flight"] == 1)
        full = guarded.ask(key)
        assert (full.status, full.json["error"]["code"]) == (429, "concurrency_limit")
        if fault == "hold-after=2":
            received = b""
            while b"w1" not in received:
                received += connection.recv(65536)
    assert eventually(lambda: guarded.usage(key)["in_flight"] == 0)
    usage = guarded.usage(key)
    assert usage["day_requests"] == 1
    assert usage["day_tokens"] >= (2 if fault == "hold-after=2" else 1)
    assert guarded.ask(key).status == 200


def test_openais_client_understands_the_refusals(guarded: Guarded) -> None:
    key = guarded.key(rpm=1)
    url = f"{guarded.stack.router.url}/v1"
    with openai.OpenAI(base_url=url, api_key=key["secret"], max_retries=0, timeout=5) as api:
        api.chat.completions.create(model=NAME, messages=[], max_tokens=1)
        with pytest.raises(openai.RateLimitError) as refused:
            api.chat.completions.create(model=NAME, messages=[], max_tokens=1)
    assert refused.value.code == "rate_limit_requests"
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0, timeout=5) as api,
        pytest.raises(openai.AuthenticationError),
    ):
        api.chat.completions.create(model=NAME, messages=[], max_tokens=1)


@pytest.mark.parametrize("path", ["/admin/keys", "/admin/replicas", "/admin/explain", "/metrics/../admin/keys"])
def test_the_admin_api_is_neither_on_the_clients_port_nor_open(guarded: Guarded, path: str) -> None:
    router = guarded.stack.router
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    assert router.request("GET", path, None, headers).status == 404
    for wrong in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer nonsense"}):
        assert router.admin.request("GET", "/admin/keys", None, wrong).status == 401


@pytest.mark.parametrize(
    "path",
    ["/pause", "/sleep", "/collective_rpc", "/update_weights", "/load", "/v1/load_lora_adapter", "/reset_prefix_cache"],
)
def test_engines_own_admin_routes_are_out_of_reach(guarded: Guarded, path: str) -> None:
    key = guarded.key()
    for method in ("GET", "POST"):
        answer = guarded.stack.router.request(method, path, b"{}", {"authorization": f"Bearer {key['secret']}"})
        assert answer.status == 404
