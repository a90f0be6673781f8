"""Real servers on free loopback ports, each in a thread of this process, spoken to over HTTP."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import uvicorn

from router.config import RouterConfig
from router.service import Router


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpServer:
    """Whatever listens on a port of 127.0.0.1."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

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


class AppServer(HttpServer):
    """One ASGI application behind uvicorn. Stopped, it breaks what is under way, as a dying engine does."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.002)

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        # A forced exit leaves its connections open, and their collection would be a warning in some later test.
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    def stop(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._socket.close()


class RouterServer(HttpServer):
    """A whole router. `call` runs something in its event loop."""

    def __init__(self, config: RouterConfig) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._admin_socket = socket.create_server(("127.0.0.1", 0))
        self.admin = HttpServer()
        self.admin.port = self._admin_socket.getsockname()[1]
        self._config = config
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with Router(self._config) as self.router:
            public, admin = self.router.servers()
            await public.start(self._socket)
            await admin.start(self._admin_socket)
            self._started.set()
            await self._stop.wait()
            await asyncio.gather(public.stop(2), admin.stop(2))

    def call(self, what: Callable[[], Awaitable[Any]]) -> Any:
        """What the coroutine gives, run in the router's event loop."""

        async def run() -> Any:
            return await what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._socket.close()
        self._admin_socket.close()


def wait_until(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
