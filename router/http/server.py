"""The server side of HTTP/1.1: reads requests, hands each to the app, and writes what the app answers."""

import asyncio
import socket
from collections import deque
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast
from urllib.parse import unquote

import httptools

from router.errors import ApiError, Headers

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Requests that a client may send before the first is answered; after that the connection is not read for a while.
_PIPELINED = 16
_BODY_BUFFER = 256 * 1024
_WITHOUT_BODY = (204, 304)


class Request:
    """One request as it was read. `headers` have lower-case names; `path` is decoded, `target` as it came."""

    __slots__ = ("body", "expects_body", "headers", "keep_alive", "method", "path", "query", "target")

    def __init__(self, method: bytes, target: bytes, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        path, _, self.query = target.partition(b"?")
        self.path = unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1")
        self.keep_alive = True
        self.expects_body = False
        self.body: list[bytes] = []

    def header(self, wanted: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        for name, value in self.headers:
            if name == wanted:
                return value
        return None


class Responder(Protocol):
    """Whatever answers one request. Called in the event loop; must not block."""

    def body_arrived(self) -> None:
        """More of the body is in `request.body`; only while the request is not complete."""

    def request_complete(self) -> None:
        """The request has been read whole and it is its turn to be answered."""

    def client_left(self) -> None:
        """The connection is gone; nothing more can be sent."""

    def writing_paused(self) -> None:
        """The client reads more slowly than it is written to."""

    def writing_resumed(self) -> None:
        """The client has caught up."""


class App(Protocol):
    """Chooses who answers a request, from its head."""

    def responder(self, request: Request, connection: "Connection") -> Responder: ...

    def body_limit(self, request: Request) -> int | None:
        """Bytes; None where the responder takes the body piece by piece, and is fed no faster than it takes."""


class Server:
    """Serves an app on sockets. `header_bytes` bounds a request's head; timeouts in seconds."""

    def __init__(self, app: App, *, header_bytes: int = 65536, idle: float = 75.0, reading: float = 60.0) -> None:
        self.app = app
        self.header_bytes = header_bytes
        # Longer than common clients and load balancers keep an idle connection (60 s), so that they close it and not
        # the server, which could do so as they send the next request.
        self.idle = idle
        self.reading = reading
        self.connections: set[Connection] = set()
        self.stopping = False
        self.date = b""
        self.loop: asyncio.AbstractEventLoop
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._all_left = asyncio.Event()

    async def start(self, *sockets: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self.date = formatdate(usegmt=True).encode()
        self._sweeper = asyncio.create_task(self._sweep())
        for each in sockets:
            self._listeners.append(await self.loop.create_server(lambda: Connection(self), sock=each, backlog=4096))

    async def stop(self, grace: float) -> None:
        """Takes no more connections, gives running requests `grace` seconds, then breaks what is left."""
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._until_left()
        for connection in list(self.connections):
            connection.abort()
        await self._until_left()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def left(self, connection: "Connection") -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_left.set()

    async def _until_left(self) -> None:
        if self.connections:
            self._all_left.clear()
            await self._all_left.wait()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.date = formatdate(usegmt=True).encode()
            now = self.loop.time()
            for connection in list(self.connections):
                if connection.deadline < now:
                    connection.expire()


class Connection(asyncio.Protocol):
    """One client's connection: one request is answered at a time, in the order in which they came."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.deadline = 0.0
        self.writable = True
        self._transport: asyncio.Transport
        self._parser: httptools.HttpRequestParser
        self._url = b""
        self._headers: Headers = []
        self._head_bytes = 0
        self._body_bytes = 0
        self._body_limit: int | None = None
        self._reading: tuple[Request, Responder] | None = None
        """The request whose body is still coming."""
        self._answering: tuple[Request, Responder] | None = None
        self._waiting: deque[tuple[Request, Responder]] = deque()
        self._broken = False
        """Nothing more is read as a request."""
        self._lost = False
        self._paused = False
        self._chunked = False

    # Reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not of that class under uvloop, but with all of its methods.
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self.server.connections.add(self)
        self.deadline = self.server.loop.time() + self.server.idle

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        if self._reading is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            raised = error.__context__
            self._refuse(raised if isinstance(raised, ApiError) else ApiError(500, "The router failed.", code=None))
        except httptools.HttpParserError:
            self._refuse(ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http"))
        if self._reading is None and self._head_bytes > self.server.header_bytes and not self._broken:
            self._refuse(_head_too_large(self.server.header_bytes))

    def _decline_upgrade(self, rest: bytes) -> None:
        """Reads the request as if no upgrade had been asked for, as RFC 9110, 7.8, allows; the parser would not."""
        lines = [b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._url)]
        lines += [b"%b: %b\r\n" % each for each in self._headers if each[0] not in (b"upgrade", b"connection")]
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join([*lines, b"\r\n", rest]))

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        if self._answering is None:
            self.deadline = self.server.loop.time() + self.server.reading

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        request = Request(self._parser.get_method(), self._url, self._headers)
        request.keep_alive = self._parser.should_keep_alive() and not self.server.stopping
        length = request.header(b"content-length")
        request.expects_body = length not in (None, b"0") or request.header(b"transfer-encoding") is not None
        # What came with the head may be body too, so that only a large read is worth counting.
        if self._head_bytes > self.server.header_bytes:
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
            if size > self.server.header_bytes:
                raise _head_too_large(self.server.header_bytes)
        self._body_bytes = self._head_bytes = 0
        limit = self.server.app.body_limit(request)
        busy = self._answering is not None or bool(self._waiting)
        if limit is None and busy:
            # Its turn comes once it has been read whole.
            limit = _BODY_BUFFER
        self._body_limit = limit
        if length is not None and limit is not None and int(length) > limit:
            raise _too_large(limit)
        self._reading = (request, self.server.app.responder(request, self))
        if limit is None:
            self._answering = self._reading
        if request.expects_body and (request.header(b"expect") or b"").lower() == b"100-continue":
            self._transport.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        if self._reading is None:
            return
        request, responder = self._reading
        self._body_bytes += len(data)
        if self._body_limit is not None and self._body_bytes > self._body_limit:
            raise _too_large(self._body_limit)
        request.body.append(data)
        if self._body_limit is None or self._answering is None:
            self.deadline = self.server.loop.time() + self.server.reading
        if self._body_limit is None:
            responder.body_arrived()
            if not self._paused and sum(map(len, request.body)) > _BODY_BUFFER:
                self._paused = True
                self._transport.pause_reading()

    def body_taken(self) -> None:
        """A responder that takes the body piece by piece has emptied `request.body`."""
        if self._paused and len(self._waiting) < _PIPELINED:
            self._paused = False
            self._transport.resume_reading()

    def on_message_complete(self) -> None:
        if self._reading is None:
            return
        exchange, self._reading = self._reading, None
        if self._answering is exchange:
            self._answer(exchange)
        elif self._answering is not None or self._waiting:
            self._waiting.append(exchange)
            if len(self._waiting) >= _PIPELINED and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        else:
            self._answer(exchange)

    def _answer(self, exchange: tuple[Request, Responder]) -> None:
        if self._lost:
            return
        self._answering = exchange
        self.deadline = float("inf")
        exchange[1].request_complete()

    # Writing

    def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Answers the request whole, in one write."""
        if self._lost:
            return
        out = self._head(status, headers)
        if status not in _WITHOUT_BODY:
            out.append(b"content-length: %d\r\n\r\n" % len(body))
        else:
            out.append(b"\r\n")
        if self._answering is None or self._answering[0].method != b"HEAD":
            out.append(body)
        self._transport.write(b"".join(out))
        self._finish()

    def begin(self, status: int, headers: Headers, first: bytes = b"") -> None:
        """Starts an answer of unknown length."""
        if self._lost:
            return
        out = self._head(status, headers)
        self._chunked = self._parser_version() != "1.0"
        out.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"connection: close\r\n\r\n")
        if not self._chunked and self._answering is not None:
            self._answering[0].keep_alive = False
        if first:
            out.append(b"%x\r\n%b\r\n" % (len(first), first) if self._chunked else first)
        self._transport.write(b"".join(out))

    def send(self, data: bytes) -> None:
        """More of an answer that was begun."""
        # uvloop refuses what is written after the connection was lost, and the cancelled task has yet to run.
        if self._lost:
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, last: bytes = b"") -> None:
        """Ends an answer that was begun."""
        if self._lost:
            return
        if self._chunked:
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last) if last else b"0\r\n\r\n")
        elif last:
            self._transport.write(last)
        self._finish()

    def abort(self) -> None:
        """Breaks the connection, so that the client does not take a part for the whole."""
        self._broken = True
        self._transport.abort()

    @property
    def peer(self) -> tuple[str, int] | None:
        """The client's address and port."""
        name = self._transport.get_extra_info("peername")
        return (str(name[0]), int(name[1])) if name else None

    def _parser_version(self) -> str:
        version: str = self._parser.get_http_version()
        return version

    def _head(self, status: int, headers: Headers) -> list[bytes]:
        out = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))]
        dated = False
        for name, value in headers:
            out.append(b"%b: %b\r\n" % (name, value))
            dated = dated or name == b"date"
        if not dated:
            out.append(b"date: %b\r\n" % self.server.date)
        if self._answering is not None and (not self._answering[0].keep_alive or self.server.stopping):
            self._answering[0].keep_alive = False
            out.append(b"connection: close\r\n")
        return out

    def _finish(self) -> None:
        if self._answering is None:
            return
        request, _ = self._answering
        self._answering = None
        self._chunked = False
        if not request.keep_alive or self._broken or self._reading is not None:
            # An answer before its request has come whole leaves no place from which to read the next one.
            self._reading = None
            self._broken = True
            self._transport.close()
            return
        self.deadline = self.server.loop.time() + self.server.idle
        if self._waiting:
            following = self._waiting.popleft()
            # In a turn of its own, or a client that pipelines could nest calls without end.
            self.server.loop.call_soon(self._answer, following)
            self._answering = following
        if self._paused:
            self.body_taken()

    def _refuse(self, error: ApiError) -> None:
        """Answers what cannot be read as a request, and closes: what follows on the connection has no meaning."""
        self._broken = True
        unread, self._reading = self._reading, None
        if unread is not None and unread is self._answering:
            # An answer may have begun; all that can still be said is that it is not complete.
            self._transport.abort()
            return
        if unread is not None:
            unread[1].client_left()
        if self._answering is None:
            fixed: Headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            self.respond(error.status, fixed, error.body)
            self._transport.close()

    # The connection's own events

    def close_if_idle(self) -> None:
        if self._answering is None and self._reading is None:
            self._broken = True
            self._transport.close()

    def expire(self) -> None:
        """The client has sent nothing for too long."""
        if self._reading is not None or self._head_bytes:
            self._refuse(ApiError(408, "The request did not arrive in time.", code="request_timeout"))
        else:
            self.close_if_idle()

    def pause_writing(self) -> None:
        self.writable = False
        if self._answering is not None:
            self._answering[1].writing_paused()

    def resume_writing(self) -> None:
        self.writable = True
        if self._answering is not None:
            self._answering[1].writing_resumed()

    def eof_received(self) -> bool:
        # A client that has shut down its sending half is taken to have left: half-open connections are rare in
        # HTTP, and abandoned answers are not.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._broken = self._lost = True
        self.server.left(self)
        for exchange in {self._reading, self._answering} - {None}:
            assert exchange is not None
            exchange[1].client_left()
        self._reading = self._answering = None
        self._waiting.clear()


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")


def _head_too_large(limit: int) -> ApiError:
    return ApiError(431, f"The request's head is larger than {limit} bytes.", code="headers_too_large")
