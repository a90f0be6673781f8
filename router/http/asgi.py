"""Lets an ASGI application answer requests that are not on the hot path."""

import asyncio

from starlette.types import ASGIApp, Message, Scope

from router.errors import ApiError
from router.http.server import Connection, Request


class AsgiResponder:
    """Answers one request with an ASGI application (version 3, HTTP only)."""

    def __init__(self, app: ASGIApp, request: Request, connection: Connection) -> None:
        self._app = app
        self._request = request
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self._complete = False
        self._received = False
        self._left = False
        self._event = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._begun = False
        self._ended = False

    def body_arrived(self) -> None:
        self._event.set()
        self._start()

    def request_complete(self) -> None:
        self._complete = True
        self._event.set()
        self._start()

    def client_left(self) -> None:
        self._left = True
        self._event.set()
        self._writable.set()

    def writing_paused(self) -> None:
        self._writable.clear()

    def writing_resumed(self) -> None:
        self._writable.set()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        connection = self._connection
        try:
            await self._app(self._scope(), self._receive, self._send)
        except Exception as error:
            # Starlette answers what it can; what still comes out here is logged by it and ends the answer.
            if not self._left and not self._begun and not self._ended:
                refused = error if isinstance(error, ApiError) else None
                refused = refused or ApiError(500, "The router failed on this request.", code="internal_server_error")
                connection.respond(refused.status, [(b"content-type", b"application/json")], refused.body)
                self._ended = True
            if not isinstance(error, ApiError):
                raise
        finally:
            if not self._ended and not self._left:
                connection.abort()

    def _scope(self) -> Scope:
        request = self._request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method.decode("latin-1"),
            "scheme": "http",
            "path": request.path,
            "raw_path": request.target.partition(b"?")[0],
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
            "client": self._connection.peer,
            "server": None,
        }

    async def _receive(self) -> Message:
        while True:
            if self._left or self._ended:
                return {"type": "http.disconnect"}
            if self._request.body or (self._complete and not self._received):
                body = b"".join(self._request.body)
                self._request.body.clear()
                self._connection.body_taken()
                # Once it is, only a disconnect is left to report.
                self._received = self._complete
                return {"type": "http.request", "body": body, "more_body": not self._complete}
            self._event.clear()
            await self._event.wait()

    async def _send(self, message: Message) -> None:
        if self._left:
            return
        connection = self._connection
        if message["type"] == "http.response.start":
            self._head = (message["status"], list(message.get("headers", ())))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._head is not None and not more:
            status, headers = self._head
            kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
            self._ended = True
            connection.respond(status, kept, body)
        elif self._head is not None:
            status, headers = self._head
            connection.begin(status, [(n, v) for n, v in headers if n.lower() != b"content-length"], body)
            self._begun = True
        elif more:
            if body:
                connection.send(body)
        else:
            self._ended = True
            connection.end(body)
        self._head = None
        if self._ended:
            self._event.set()
        await self._writable.wait()
