"""Cascades and shadows: a second variant's answer, where the first one's will not do, or to compare."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from router.config import RouterConfig
from tests.servers import AppServer, RouterServer

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


class Says:
    """An engine that says what it is told to, or an operator's verifier."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.status = 200
        self.asked: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["method"] == "POST":
            self.asked.append(json.loads(body))
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        answer: Any = {"choices": [{"message": {"content": self.text}}], "usage": usage}
        if scope["path"] == "/verify":
            answer = {"accept": self.asked[-1]["response"]["choices"][0]["message"]["content"] == self.text}
        data = json.dumps(answer).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        status = self.status if scope["method"] == "POST" else 200
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": data})


class Pair:
    def __init__(self, **model: Any) -> None:
        self.standard, self.fast = Says("standard's"), Says("fast's")
        self._servers = [AppServer(self.standard), AppServer(self.fast)]
        urls = [server.url for server in self._servers]
        variants = {
            "standard": {"replicas": (urls[0],), "usd_per_hour": 3.6},
            "fast": {"replicas": (urls[1],), "usd_per_hour": 3.6},
        }
        config = {"auth": "off", "models": ({"name": NAME, "variants": variants, **model},)}
        self.router = RouterServer(RouterConfig.model_validate(config))

    def ask(self, **fields: Any) -> Any:
        return self.router.post(CHAT, {"model": NAME, "messages": [], "temperature": 0, **fields})

    def said(self, answer: Any) -> str:
        return str(answer.json["choices"][0]["message"]["content"])

    def metric(self, name: str) -> list[str]:
        lines = self.router.request("GET", "/metrics").body.decode().splitlines()
        return [line for line in lines if line.startswith(name)]

    def stop(self) -> None:
        self.router.stop()
        for server in self._servers:
            server.stop()


@pytest.fixture
def start_pair() -> Iterator[Callable[..., Pair]]:
    running: list[Pair] = []

    def start(**model: Any) -> Pair:
        running.append(Pair(**model))
        return running[-1]

    yield start
    for pair in running:
        pair.stop()


def response_format(schema: Any = SCHEMA) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ('{"n": 1}', "fast"),
        ('{"n": "1"}', "standard"),
        ('{"n": 1', "standard"),
        ('{"m": 1}', "standard"),
        ("", "standard"),
    ],
)
def test_the_answer_that_meets_the_requests_schema_is_served(
    start_pair: Callable[..., Pair], text: str, served: str
) -> None:
    pair = start_pair(cascade={"verifier": "json_schema"})
    pair.fast.text = text
    answer = pair.ask(response_format=response_format())
    assert pair.said(answer) == (text if served == "fast" else "standard's")
    assert answer.headers["x-twinspeed-variant"] == served
    verdict = "accepted" if served == "fast" else "rejected"
    assert answer.headers["x-twinspeed-reason"] == f"cascade_{verdict}"
    assert (len(pair.fast.asked), len(pair.standard.asked)) == (1, int(served == "standard"))
    assert pair.metric("twinspeed_router_cascade_total") == [
        f'twinspeed_router_cascade_total{{model="{NAME}",outcome="{verdict}"}} 1.0'
    ]


def test_a_rejected_answer_is_paid_for_too(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair(cascade={"verifier": "regex", "pattern": "fast.*"})
    pair.ask()
    [accepted] = pair.metric("twinspeed_router_cost_usd_total")
    pair.fast.text = "slow"
    pair.ask()
    total = sum(float(line.rpartition(" ")[2]) for line in pair.metric("twinspeed_router_cost_usd_total"))
    assert total == pytest.approx(3 * float(accepted.rpartition(" ")[2]), rel=0.01)


def test_a_schema_that_names_an_address_fetches_nothing(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair(cascade={"verifier": "json_schema"})
    pair.fast.text = '{"n": 1}'
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.3)
        reference = {"$ref": f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"}
        answer = pair.ask(response_format=response_format(reference))
        with pytest.raises(TimeoutError):
            elsewhere.accept()
    assert answer.headers["x-twinspeed-variant"] == "standard"


@pytest.mark.parametrize("schema", [{"type": 7}, {"$ref": "#"}, {"pattern": "("}, 5, None])
def test_a_schema_that_is_none_fails_nothing(start_pair: Callable[..., Pair], schema: Any) -> None:
    pair = start_pair(cascade={"verifier": "json_schema"})
    pair.fast.text = '{"n": 1}'
    assert pair.ask(response_format=response_format(schema)).status == 200


def test_pins_goals_and_streams_go_by_no_cascade(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair(cascade={"verifier": "regex", "pattern": "never"})
    assert pair.ask(model=f"{NAME}:fast").headers["x-twinspeed-reason"] == "pinned"
    assert pair.ask(model=f"{NAME}:floor").headers["x-twinspeed-reason"] == "floor"
    assert "cascade" not in pair.ask(stream=True).headers["x-twinspeed-reason"]


def test_the_operators_own_verifier_decides(start_pair: Callable[..., Pair]) -> None:
    verifier = AppServer(Says("good"))
    pair = start_pair(cascade={"verifier": "http", "url": f"{verifier.url}/verify"})
    pair.fast.text = "good"
    assert pair.ask().headers["x-twinspeed-variant"] == "fast"
    pair.fast.text = "bad"
    assert pair.ask().headers["x-twinspeed-variant"] == "standard"
    verifier.stop()
    pair.fast.text = "good"
    assert pair.ask().headers["x-twinspeed-variant"] == "standard"


def test_a_first_variant_that_fails_is_followed_by_the_other(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair(cascade={"verifier": "regex", "pattern": ".*"})
    pair.fast.status = 500
    answer = pair.ask()
    assert (answer.status, answer.headers["x-twinspeed-reason"]) == (200, "cascade_failed")
    pair.fast.status = 400
    assert (pair.ask().status, len(pair.standard.asked)) == (400, 1)


def test_shadows_are_compared_and_seen_by_nobody(
    start_pair: Callable[..., Pair], eventually: Callable[..., bool]
) -> None:
    pair = start_pair(shadow={"variant": "fast", "share": 1.0})
    pair.fast.text = pair.standard.text
    assert pair.ask().headers["x-twinspeed-variant"] == "standard"
    metric = "twinspeed_router_shadow_total"
    assert eventually(lambda: len(pair.metric(metric)) == 1, 3)
    assert 'agreed="true"' in pair.metric(metric)[0]
    pair.fast.text = "different"
    assert pair.said(pair.ask()) == "standard's"
    assert eventually(lambda: len(pair.metric(metric)) == 2, 3)
    requests = sum(float(line.rpartition(" ")[2]) for line in pair.metric("twinspeed_router_requests_total"))
    assert requests == 2
    before = len(pair.fast.asked)
    pair.ask(temperature=0.7)
    pair.ask(model=f"{NAME}:fast")
    barrier = threading.Event()
    assert not barrier.wait(0.2)
    assert len(pair.fast.asked) == before + 1
