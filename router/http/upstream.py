"""The client side of HTTP/1.1: connections to engines, kept and reused, whose answers arrive by callback."""

import asyncio
import os
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from router.errors import Headers

# vLLM closes a connection that was idle for 5 s; a request sent at that moment would be lost.
_KEPT_IDLE = 4.0


class UpstreamError(Exception):
    """The engine could not be reached, or broke off. `stale`: on a kept connection, before any byte of an answer."""

    def __init__(self, message: str, *, stale: bool = False) -> None:
        super().__init__(message)
        self.stale = stale


class AnswerSink(Protocol):
    """Takes one answer, in the event loop. After `failed` or `ended` nothing more comes."""

    def head(self, status: int, headers: Headers) -> None:
        """The head; names in lower case. The first body comes in a call of its own, in the same turn if it is there."""

    def body(self, parts: list[bytes], *, last: bool) -> None:
        """What one read brought of the body; may be empty where `last` is true."""

    def failed(self, error: UpstreamError) -> None:
        """The answer is not complete and never will be."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to one engine. `transport` may be paused by whoever reads more slowly."""

    def __init__(self, pool: "Pool") -> None:
        self.transport: asyncio.Transport
        self.idle_since = 0.0
        self.reused = False
        self.lost = False
        self._parser: httptools.HttpResponseParser
        self._pool = pool
        self._sink: AnswerSink | None = None
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._answered = False
        self._complete = False
        self._by_close = False
        self._reusable = False

    def send(self, sink: AnswerSink, request: bytes) -> None:
        """Sends a whole request, head and body."""
        self._sink = sink
        self._answered = self._complete = self._by_close = False
        self.transport.write(request)

    def abandon(self) -> None:
        """Breaks the connection, upon which the engine ends its work; the sink hears nothing more."""
        self._sink = None
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not of that class under uvloop, but with all of its methods.
        self.transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # An answer that nobody asked for, or no longer.
            self.transport.abort()
            return
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(UpstreamError(f"no valid HTTP: {error}"))
            return
        if self._sink is None:
            # The sink has abandoned this connection while it took the head.
            return
        if self._complete:
            parts, self._parts = self._parts, []
            self._sink = None
            self._recycle()
            sink.body(parts, last=True)
        elif self._parts:
            parts, self._parts = self._parts, []
            sink.body(parts, last=False)

    def on_message_begin(self) -> None:
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        # An interim answer (RFC 9110, 15.2); the final one follows.
        if status >= 200 and self._sink is not None:
            names = {name for name, _ in self._headers}
            self._by_close = not names & {b"content-length", b"transfer-encoding"}
            self._sink.head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._complete = self._parser.get_status_code() >= 200
        self._reusable = self._parser.should_keep_alive()

    def _recycle(self) -> None:
        if self.lost or not self._reusable:
            self.transport.close()
            return
        self.reused = True
        self._pool.keep(self)

    def _fail(self, error: UpstreamError) -> None:
        sink, self._sink = self._sink, None
        self.transport.abort()
        if sink is not None:
            sink.failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._sink is None:
            self._pool.forget(self)
            return
        if self._by_close and exc is None:
            # Of an answer without a length, the end of the connection is the end (RFC 9112, 6.3).
            sink, self._sink = self._sink, None
            sink.body([], last=True)
            return
        stale = self.reused and not self._answered
        self._fail(UpstreamError(f"connection lost{f': {exc}' if exc else ''}", stale=stale))


class Pool:
    """Connections to one engine; as many as there are requests, and idle ones are kept for a while."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.authority = parts.netloc.encode()
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._idle: list[UpstreamConnection] = []
        self._closed = False

    async def connect(self, within: float) -> UpstreamConnection:
        """A new connection; `within` so many seconds.

        Raises:
            UpstreamError: none could be made in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within):
                _, connection = await loop.create_connection(lambda: UpstreamConnection(self), self._host, self._port)
        except TimeoutError:
            raise UpstreamError(f"no connection within {within:g} s") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise UpstreamError(f"cannot connect: {reason}") from None
        return connection

    def take_idle(self) -> UpstreamConnection | None:
        """The kept connection that was used last, or None."""
        oldest = asyncio.get_running_loop().time() - _KEPT_IDLE
        while self._idle:
            connection = self._idle.pop()
            if connection.lost:
                continue
            if connection.idle_since >= oldest:
                return connection
            connection.transport.close()
        return None

    def drop_idle(self) -> None:
        """Closes the connections that are kept."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.transport.close()

    def close(self) -> None:
        """Keeps no connection any more; those in use are closed once their answers are complete."""
        self._closed = True
        self.drop_idle()

    def forget(self, connection: UpstreamConnection) -> None:
        """The engine has closed a connection, idle or not."""
        if connection in self._idle:
            self._idle.remove(connection)

    def keep(self, connection: UpstreamConnection) -> None:
        """Takes back a connection whose answer is complete."""
        if self._closed:
            connection.transport.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
