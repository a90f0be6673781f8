"""Takes one engine's answer: streams pass through as the bytes that arrive, any other answer is held until it is whole.

Held, an answer can still be retried elsewhere when its engine dies, and its cost can stand in its head.
"""

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from router.config import Timeouts
from router.errors import ApiError, Headers
from router.events import StreamEditor
from router.http.upstream import UpstreamConnection, UpstreamError
from router.record import Usage
from router.usage import UsageTap, parse_usage

# A larger answer that is not streamed is passed on as it comes, without its cost in the head.
_HELD = 8 * 1024 * 1024
# Seconds that a stream's head waits for the first token: until then another replica can still answer.
_HEAD_WAITS = 10.0


class Downstream(Protocol):
    """Where a stream goes."""

    @property
    def writable(self) -> bool: ...

    def begin(self, status: int, headers: Headers, first: bytes = b"") -> None: ...

    def send(self, data: bytes) -> None: ...

    def end(self, last: bytes = b"") -> None: ...

    def abort(self) -> None: ...


class HeadWriter(Protocol):
    """Makes the head that the client gets of an engine's; called once, as the first byte is sent."""

    def __call__(self, status: int, engine_headers: Headers) -> Headers: ...


@dataclass(slots=True)
class Outcome:
    """How an attempt ended.

    `body` is the whole answer where it was held and nothing has been sent. `error` where the answer is not complete;
    `sent` tells whether the client has seen part of it.
    """

    status: int = 0
    headers: Headers | None = None
    body: bytes | None = None
    sent: bool = False
    error: ApiError | None = None
    stale: bool = False
    usage: Usage | None = None
    first_byte: float | None = None
    """`perf_counter` at the first byte of the body."""


class Attempt:
    """One try at one replica. `downstream` is None where the answer is wanted whole, streamed or not."""

    def __init__(
        self,
        variant: str,
        downstream: Downstream | None,
        write_head: HeadWriter,
        timeouts: Timeouts,
        *,
        editor: StreamEditor | None,
        prompt_tokens: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Outcome] = loop.create_future()
        self.deadline = loop.time() + timeouts.first_byte
        self._loop = loop
        self._variant = variant
        self._downstream = downstream
        self._write_head = write_head
        self._timeouts = timeouts
        self._total = loop.time() + timeouts.total
        self._editor = editor
        self._prompt_tokens = prompt_tokens
        self._connection: UpstreamConnection | None = None
        self._outcome = Outcome()
        self._streamed = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._tap: UsageTap | None = None
        self._head_due = 0.0
        self._paused = False
        self._heard = False
        """Whether something came since the last tick."""

    def start(self, connection: UpstreamConnection, request: bytes) -> None:
        self._connection = connection
        connection.send(self, request)

    # What the engine sends

    def head(self, status: int, headers: Headers) -> None:
        self._outcome.status = status
        self._outcome.headers = headers
        content_type = next((value for name, value in headers if name == b"content-type"), b"")
        if self._downstream is not None and content_type.startswith(b"text/event-stream"):
            self._streamed = True
            self._tap = UsageTap()
            self._head_due = min(self.deadline, self._loop.time() + _HEAD_WAITS)

    def body(self, parts: list[bytes], *, last: bool) -> None:
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        outcome = self._outcome
        if data and outcome.first_byte is None:
            outcome.first_byte = perf_counter()
        if not self._streamed:
            self._hold(data, last)
            return
        self._heard = True
        downstream, tap = self._downstream, self._tap
        assert downstream is not None
        assert tap is not None
        if data:
            tap.add(data)
            if self._editor is not None:
                data = self._editor.edit(data)
        if last:
            if self._editor is not None:
                data += self._editor.rest()
            if not outcome.sent:
                self._commit(downstream, data)
                data = b""
            downstream.end(data)
            self._finish(tap.usage() or tap.estimate(self._prompt_tokens))
        elif data:
            if outcome.sent:
                downstream.send(data)
            else:
                self._commit(downstream, data)
            if not downstream.writable:
                self.pause()

    def failed(self, error: UpstreamError) -> None:
        self._connection = None
        self._outcome.stale = error.stale
        self._fail(f"Variant {self._variant} failed: {error}.", 503, "variant_unavailable")

    # What the client does

    def pause(self) -> None:
        """Reads no more from the engine until `resume`: the client is slower than it."""
        if self._connection is not None and not self._paused and not self.done.done():
            self._paused = True
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._heard = True
            if self._connection is not None:
                self._connection.transport.resume_reading()

    def abandon(self) -> Outcome:
        """Ends the engine's work; how far it has come, and the tokens made so far, as far as is known."""
        self._disconnect()
        if not self.done.done():
            self.done.cancel()
        tap, outcome = self._tap, self._outcome
        # The answer may have come whole in the turn in which its client left.
        if outcome.usage is None:
            outcome.usage = Usage(self._prompt_tokens, 0)
            if tap is not None:
                outcome.usage = tap.usage() or tap.estimate(self._prompt_tokens)
        return outcome

    # The clock

    def tick(self, now: float) -> None:
        """Called a few times a second: enforces the timeouts. `now` in the loop's time."""
        if self.done.done():
            return
        if self._heard:
            # Noted here and not with each chunk: the clock's step is what a timeout is exact to.
            self._heard = False
            self.deadline = now + self._timeouts.between_bytes
        if now >= self._total or (now >= self.deadline and not self._paused):
            self._disconnect()
            self._fail(f"Variant {self._variant} did not answer in time.", 504, "variant_timeout")
        elif self._head_due and now >= self._head_due and not self._outcome.sent and self._downstream is not None:
            self._commit(self._downstream, b"")

    # Inside

    def _hold(self, data: bytes, last: bool) -> None:
        outcome, downstream = self._outcome, self._downstream
        self._held.append(data)
        self._held_bytes += len(data)
        if last:
            outcome.body = b"".join(self._held)
            usage = parse_usage(outcome.body) if outcome.status < 400 else None
            self._finish(usage)
        elif self._held_bytes > _HELD and downstream is not None:
            self._streamed = True
            self._editor = None
            self._tap = UsageTap()
            held, self._held = b"".join(self._held), []
            self._tap.add(held)
            self._commit(downstream, held)
        self._heard = True

    def _commit(self, downstream: Downstream, first: bytes) -> None:
        outcome = self._outcome
        outcome.sent = True
        downstream.begin(outcome.status, self._write_head(outcome.status, outcome.headers or []), first)

    def _finish(self, usage: Usage | None) -> None:
        self._connection = None
        self._outcome.usage = usage
        if not self.done.done():
            self.done.set_result(self._outcome)

    def _fail(self, message: str, status: int, code: str) -> None:
        outcome, downstream, tap = self._outcome, self._downstream, self._tap
        if self.done.done():
            return
        if outcome.sent and downstream is not None:
            outcome.error = ApiError(502, message, code="variant_failed" if code == "variant_unavailable" else code)
            assert tap is not None
            outcome.usage = tap.usage() or tap.estimate(self._prompt_tokens)
            content_type = next((v for name, v in outcome.headers or () if name == b"content-type"), b"")
            if content_type.startswith(b"text/event-stream"):
                # An event that was cut short is ended first, or it would swallow this one. An editor has held it.
                cut = b"" if tap.at_boundary or self._editor is not None else b"\n\n"
                downstream.end(cut + b"data: " + outcome.error.body + b"\n\n")
            else:
                downstream.abort()
        else:
            retry = [(b"retry-after", b"1")] if status == 503 else []
            outcome.error = ApiError(status, message, code=code, headers=retry)
        self.done.set_result(outcome)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
