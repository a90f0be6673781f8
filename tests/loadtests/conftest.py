"""Mock engines on free loopback ports, and ways to talk to them."""

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

import openai
import pytest
import uvicorn

from loadtests.mock_engine import MockEngine

MODEL = "tiny:fast"


@dataclass
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The name of each event, empty where it has none, and its data; [DONE] as it is."""
        found = []
        for event in self.body.decode().removesuffix("\n\n").split("\n\n"):
            name, _, data = event.rpartition("data: ")
            found.append((name.strip().removeprefix("event: "), data if data == "[DONE]" else json.loads(data)))
        return found


class Server:
    """One mock engine behind uvicorn."""

    def __init__(self, app: MockEngine) -> None:
        self.app = app
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._listening.getsockname()[1]
        config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.002)
        self.openai = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=10
        )

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listening]))

    def stop(self) -> None:
        self.openai.close()
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    def request(self, method: str, path: str, data: Any = None, **headers: str) -> Answer:
        """`data` as JSON unless it is bytes; underscores in names of headers are hyphens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        body = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        with contextlib.closing(connection):
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, response.read())

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, data: Any = None, **headers: str) -> Answer:
        return self.request("POST", path, data, **headers)

    def chat(self, **fields: Any) -> Answer:
        """A chat completion of three tokens; fields that begin with `x_mock` or `x_request_id` are headers."""
        headers = {name: fields.pop(name) for name in ("x_mock", "x_request_id") if name in fields}
        return self.post("/v1/chat/completions", {"model": MODEL, "messages": [], "max_tokens": 3, **fields}, **headers)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Serves a mock engine of the given options."""
    running: list[Server] = []

    def start(**options: Any) -> Server:
        running.append(Server(MockEngine(MODEL, **options)))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def engine(serve: Callable[..., Server]) -> Server:
    """A mock engine without delay."""
    return serve()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Whether a condition comes true within two seconds."""

    def wait(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and not condition():
            time.sleep(0.005)
        return condition()

    return wait
