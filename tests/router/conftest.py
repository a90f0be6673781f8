"""Real servers on free loopback ports, each in a thread of this process."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from loadtests.mock_engine import MockEngine
from router.app import create_app
from router.config import parse_config

NAME = "acme/tiny-7b"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """One ASGI application behind uvicorn on 127.0.0.1."""

    def __init__(self, app: Any, port: int = 0, *, graceful: bool = False) -> None:
        self._graceful = graceful
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # A mock's requests may be held for ever; a router must close its client in order.
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            ws="none",
            lifespan="on" if graceful else "off",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.002)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        # A forced exit leaves its connections open, and their collection would be a warning in some later test.
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    def ask_to_stop(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = not self._graceful

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join()
        self._socket.close()

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def post(self, path: str, data: Any, headers: dict[str, str] | None = None) -> Answer:
        """`data` as it is where it is bytes, else as JSON."""
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        return self.request("POST", path, body, {"content-type": "application/json", **(headers or {})})


@dataclass
class Stack:
    """A router named NAME and the mock engines behind it."""

    router: Server
    engines: dict[str, Server]
    apps: dict[str, MockEngine]

    def metric(self, name: str, **labels: str) -> float | None:
        text = self.router.request("GET", "/metrics").body.decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None

    def restart(self, variant: str) -> None:
        self.engines[variant] = Server(self.apps[variant], self.engines[variant].port)


def start_stack(**mock_options: Any) -> Stack:
    apps = {variant: MockEngine(f"{NAME}:{variant}", **mock_options) for variant in ("standard", "fast")}
    engines = {variant: Server(app) for variant, app in apps.items()}
    config = parse_config(NAME, [f"{variant}={engine.url}" for variant, engine in engines.items()])
    return Stack(Server(create_app(config), graceful=True), engines, apps)


def stop_stack(stack: Stack) -> None:
    servers = [stack.router, *stack.engines.values()]
    for server in servers:
        server.ask_to_stop()
    for server in servers:
        server.stop()


@pytest.fixture
def stack() -> Iterator[Stack]:
    """Both variants up, engines without delay."""
    running = start_stack()
    yield running
    stop_stack(running)


@pytest.fixture
def paced_stack() -> Iterator[Stack]:
    """As `stack`, with 20 ms between tokens, so that each reaches the router by itself."""
    running = start_stack(itl=0.02)
    yield running
    stop_stack(running)


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Server]]:
    """Serves an ASGI application."""
    running: list[Server] = []

    def start(app: Any) -> Server:
        running.append(Server(app, graceful=True))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def start_router(serve: Callable[[Any], Server]) -> Callable[..., Server]:
    """Starts a router in front of the given engines, `VARIANT=URL` each."""
    return lambda *engines: serve(create_app(parse_config(NAME, engines)))


def wait_until(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.fixture
def eventually() -> Callable[..., bool]:
    return wait_until
