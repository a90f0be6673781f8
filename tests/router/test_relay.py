"""One attempt at one engine: bytes pass as they are, usage is found, and a failure is never taken for an end."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from router.config import Timeouts
from router.errors import Headers
from router.events import StreamEditor
from router.http.upstream import Pool, UpstreamError
from router.record import Usage
from router.relay import Attempt, Outcome

pytestmark = pytest.mark.unit

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'"usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}'
EVENTS = [b'data: {"choices": [{"delta": {"content": "w%d \xc3\xa9"}}]}\n\n' % number for number in range(3)]
USAGE_EVENT = b'data: {"choices": [], ' + USAGE + b"}\n\n"
DONE = b"data: [DONE]\n\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Client:
    """A downstream that remembers what it got."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.status = 0
        self.body = b""
        self.writable = True
        self._changed = asyncio.Event()

    def begin(self, status: int, headers: Headers, first: bytes = b"") -> None:
        self.status = status
        self._got("begin", first)

    def send(self, data: bytes) -> None:
        self._got("send", data)

    def end(self, last: bytes = b"") -> None:
        self._got("end", last)

    def abort(self) -> None:
        self._got("abort", b"")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once what it got makes the condition true."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _got(self, what: str, data: bytes) -> None:
        self.log.append(what)
        self.body += data
        self._changed.set()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def engine(handler: Handler) -> AsyncIterator[Pool]:
    """Connections to a server that does what `handler` does; at the end each has been seen to its end."""
    running: set[asyncio.Task[None] | None] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        with suppress(ConnectionError):
            await handler(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(tracked, "127.0.0.1", 0)
    async with server:
        pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield pool
        pool.close()
        await asyncio.gather(*(task for task in running if task is not None))


def new_attempt(client: Client | None, *, hide_usage: bool = False, timeouts: Timeouts | None = None) -> Attempt:
    editor = StreamEditor(hide_usage=True, comment=None) if hide_usage else None
    return Attempt("fast", client, lambda _, headers: headers, timeouts or Timeouts(), editor=editor, prompt_tokens=11)


async def attempt(
    handler: Handler,
    client: Client | None,
    *,
    during: Callable[[Attempt], Awaitable[None]] | None = None,
    **options: Any,
) -> Outcome:
    """The outcome of one attempt at an engine that does what `handler` does."""
    async with engine(handler) as pool:
        one = new_attempt(client, **options)
        one.start(await pool.connect(5), b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: 0\r\n\r\n")
        if during is not None:
            await during(one)
        async with asyncio.timeout(5):
            return await one.done


def sending(*parts: bytes, close: bool = False) -> Handler:
    """Sends each part by itself, then closes or waits until the other side does."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.002)
        if not close:
            await reader.read()

    return handler


def run(handler: Handler, client: Client | None, **options: Any) -> Outcome:
    return asyncio.run(attempt(handler, client, **options))


def test_a_stream_passes_as_the_bytes_that_arrived_and_its_usage_is_known() -> None:
    client = Client()
    parts = [*EVENTS, USAGE_EVENT, DONE]
    outcome = run(sending(SSE, *map(chunk, parts), b"0\r\n\r\n"), client)
    assert client.body == b"".join(parts)
    assert client.log[0] == "begin"
    assert client.log[-1] == "end"
    assert (outcome.status, outcome.sent, outcome.error) == (200, True, None)
    assert outcome.usage == Usage(7, 3, cached=4)
    assert outcome.first_byte is not None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_usage_is_found_and_taken_out_however_the_stream_is_cut(size: int) -> None:
    stream = b"".join([*EVENTS, USAGE_EVENT, DONE])
    pieces = [chunk(stream[at : at + size]) for at in range(0, len(stream), size)]
    shown, hidden = Client(), Client()
    for client in (shown, hidden):
        outcome = run(sending(SSE, *pieces, b"0\r\n\r\n"), client, hide_usage=client is hidden)
        assert outcome.usage == Usage(7, 3, cached=4)
    assert shown.body == stream
    assert hidden.body == stream.replace(USAGE_EVENT, b"")


def test_only_the_event_that_reports_usage_alone_is_taken_out() -> None:
    said = b'data: {"choices": [{"delta": {"content": "\\"usage\\": {}"}}], "usage": null}\n\n'
    last = b'data: {"choices": [{"delta": {}}], ' + USAGE + b"}\n\n"
    broken = b'data: {"usage":\n\n'
    client = Client()
    run(sending(SSE, chunk(said + last + USAGE_EVENT + broken + DONE), b"0\r\n\r\n"), client, hide_usage=True)
    assert client.body == said + last + broken + DONE


def test_an_answer_that_is_no_stream_is_held_until_it_is_whole() -> None:
    body = json.dumps({"choices": [{"message": {"content": '"usage": 1'}}]}).encode()[:-1] + b", " + USAGE + b"}"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    client = Client()
    outcome = run(sending(head + body[:20], body[20:]), client)
    assert (outcome.body, outcome.sent, client.log) == (body, False, [])
    assert outcome.usage == Usage(7, 3, cached=4)


def test_a_large_answer_is_passed_on_as_it_comes() -> None:
    size = 9 * 1024 * 1024
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (size + len(USAGE) + 2)
    client = Client()
    outcome = run(sending(head, b"{" + b" " * size + USAGE + b"}"), client)
    assert outcome.sent
    assert len(client.body) == size + len(USAGE) + 2
    assert outcome.usage == Usage(7, 3, cached=4)


@pytest.mark.parametrize(
    "part", [SSE, SSE[:30], b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal", b"no HTTP\r\n"]
)
def test_an_engine_that_breaks_off_before_the_client_saw_anything_can_be_replaced(part: bytes) -> None:
    client = Client()
    outcome = run(sending(part, close=True), client)
    assert outcome.error is not None
    assert (outcome.sent, outcome.error.status, outcome.error.code) == (False, 503, "variant_unavailable")
    assert client.log == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_stream_that_breaks_off_ends_with_an_error_event(cut: bool) -> None:
    client = Client()
    parts = [SSE, chunk(EVENTS[0]), *([chunk(EVENTS[1][:9])] if cut else [])]
    outcome = run(sending(*parts, close=True), client)
    assert outcome.error is not None
    assert (outcome.sent, outcome.error.code) == (True, "variant_failed")
    assert outcome.usage == Usage(11, 1)
    *whole, last, rest = client.body.split(b"\n\n")
    assert whole[0] + b"\n\n" == EVENTS[0]
    assert (len(whole), rest) == (2 if cut else 1, b"")
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "variant_failed"


def test_a_silent_engine_is_given_up_in_each_phase() -> None:
    async def clock(one: Attempt) -> None:
        while not one.done.done():
            one.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)

    quick = Timeouts(first_byte=0.1, between_bytes=0.1)
    for parts in ([], [SSE]):
        client = Client()
        late = run(sending(*parts), client, timeouts=quick, during=clock)
        assert late.error is not None
        assert (late.error.status, late.error.code, late.sent, client.log) == (504, "variant_timeout", False, [])
    client = Client()
    stalled = run(sending(SSE, chunk(EVENTS[0])), client, timeouts=quick, during=clock)
    assert stalled.sent
    assert b'"code": "variant_timeout"' in client.body
    endless = Timeouts(total=0.1)
    stalled = run(sending(SSE, *[chunk(EVENTS[0])] * 200), Client(), timeouts=endless, during=clock)
    assert stalled.error is not None


def test_a_slow_client_stops_the_reading_and_its_catching_up_starts_it_again() -> None:
    class SlowClient(Client):
        def begin(self, status: int, headers: Headers, first: bytes = b"") -> None:
            super().begin(status, headers, first)
            self.writable = False

    client = SlowClient()

    async def wait_and_resume(one: Attempt) -> None:
        await client.until(lambda: bool(client.log))
        await asyncio.sleep(0.1)
        assert client.log == ["begin"]
        # However long the client takes, the engine is not blamed for it.
        one.tick(asyncio.get_running_loop().time() + 200)
        client.writable = True
        one.resume()

    parts = [SSE + chunk(EVENTS[0]), *map(chunk, EVENTS[1:]), chunk(DONE), b"0\r\n\r\n"]
    outcome = run(sending(*parts), client, during=wait_and_resume)
    assert outcome.error is None
    assert client.body == b"".join([*EVENTS, DONE])


def test_an_abandoned_attempt_breaks_the_connection_and_tells_what_was_made() -> None:
    async def scenario() -> None:
        client = Client()
        closed = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(SSE + chunk(EVENTS[0]) + chunk(EVENTS[1]))
            with suppress(ConnectionError):
                await reader.read()
            closed.set()

        async def abandon(one: Attempt) -> None:
            await client.until(lambda: client.body.count(b"\n\n") == 2)
            assert one.abandon().usage == Usage(11, 2)
            async with asyncio.timeout(1):
                await closed.wait()

        with pytest.raises(asyncio.CancelledError):
            await attempt(handler, client, during=abandon)

    asyncio.run(scenario())


def test_a_connection_is_used_again_and_one_closed_while_idle_is_told_apart() -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        while await reader.read(65536):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def scenario() -> None:
        async with engine(handler) as pool:

            async def ask() -> Outcome:
                one = new_attempt(None)
                one.start(pool.take_idle() or await pool.connect(5), b"GET / HTTP/1.1\r\n\r\n")
                return await one.done

            for _ in range(3):
                assert (await ask()).body == b"{}"
            assert len(accepted) == 1
            accepted[0].transport.abort()
            # The engine's end of the connection is gone, and this side has not been told yet.
            stale = await ask()
            assert stale.stale
            assert stale.error is not None
            assert (await ask()).body == b"{}"
            assert len(accepted) == 2

    asyncio.run(scenario())


def test_an_engine_that_cannot_be_reached_says_why() -> None:
    async def scenario() -> None:
        with pytest.raises(UpstreamError, match="cannot connect: Connection refused"):
            await Pool("http://127.0.0.1:9").connect(1)

    asyncio.run(scenario())
