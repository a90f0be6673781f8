"""A small HTTP/1.1 client that sees every byte, reads as slowly as it likes and leaves when it wants to."""

import asyncio
import time
from dataclasses import dataclass, field

import httptools

_PATIENCE_S = 60.0


@dataclass(slots=True)
class Reply:
    """What came of an answer. Times in seconds since the epoch; `first_at` is that of the first byte of the body."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    left: bool = False
    """The client left before it was complete."""
    sent_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How the client behaves. `leave_after_s` from the request; `leave_after_bytes` of body; `dawdle_s` between the
    first bytes of the body and the next read; `send` is the share of the request that is sent at all.
    """

    leave_after_s: float | None = None
    leave_after_bytes: int | None = None
    dawdle_s: float = 0.0
    send: float = 1.0

    @property
    def leaves(self) -> bool:
        return self.leave_after_s is not None or self.leave_after_bytes is not None


PATIENT = Manner()


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.usable = True
        self._loop = asyncio.get_running_loop()
        self._reply = Reply()
        self._parts: list[bytes] = []
        self._seen = 0
        self._manner = PATIENT
        self._done: asyncio.Future[None] | None = None
        self._whole = False

    @classmethod
    async def open(cls, port: int) -> "Connection":
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def ask(self, request: bytes, manner: Manner = PATIENT) -> Reply:
        """The answer, as far as it came. Raises TimeoutError where it neither came nor broke off in a minute."""
        reply = self._reply = Reply(sent_at=time.time())
        self._parts, self._seen, self._whole, self._manner = [], 0, False, manner
        self._parser = httptools.HttpResponseParser(self)
        done = self._done = self._loop.create_future()
        self.transport.write(request[: int(len(request) * manner.send)])
        try:
            async with asyncio.timeout(manner.leave_after_s or _PATIENCE_S):
                await done
        except TimeoutError:
            if manner.leave_after_s is None:
                raise
            reply.left = True
        self._done = None
        reply.ended_at = time.time()
        reply.body = b"".join(self._parts)
        reply.complete = self._whole
        if not reply.complete:
            self.close()
        return reply

    def close(self) -> None:
        self.usable = False
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            self.close()
            return
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._finish()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        self.usable = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if not self._reply.first_at:
            self._reply.first_at = time.time()
            if self._manner.dawdle_s:
                self.transport.pause_reading()
                self._loop.call_later(self._manner.dawdle_s, self._read_on)
        self._parts.append(data)
        self._seen += len(data)
        limit = self._manner.leave_after_bytes
        if limit is not None and self._seen >= limit and not self._whole:
            self._reply.left = True
            self._finish()

    def on_message_complete(self) -> None:
        self._whole = not self._reply.left
        self._finish()

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A request's bytes. Underscores in the headers' names stand for dashes."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def ask_once(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    """One request on a connection of its own."""
    connection = await Connection.open(port)
    try:
        return await connection.ask(request(method, path, body, **headers))
    finally:
        connection.close()
