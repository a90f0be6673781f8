"""Trace context for engines and, once a request is over, its span for an OpenTelemetry collector."""

import importlib
import os
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from router.observe.batch import BatchThread
from router.observe.cells import Numbers
from router.record import RequestRecord
from twinspeed.errors import InputError

if TYPE_CHECKING:
    from router.observe.spans import Spans

# W3C Trace Context: version, trace, parent's span, flags; neither of the two is all zeros.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_SAMPLED = 1

_CAPACITY = 8192  # spans that wait for the thread
_CHUNK = 512  # spans in one export
_DELAY = 1.0  # seconds
_CLOSE_TIMEOUT = 5.0  # seconds that the collector gets for the last spans


@dataclass(frozen=True, slots=True)
class Context:
    """A span's place in its trace. Ids in lower-case hexadecimal."""

    trace: str
    span: str
    parent: str | None
    flags: int

    @property
    def sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)


def read_traceparent(header: bytes) -> str | None:
    """The header's value if it is valid, else None."""
    value = header.decode("latin-1")
    return value if _TRACEPARENT.fullmatch(value) else None


class Tracer:
    """Exports spans by OTLP over HTTP. `dropped` counts what found the queue full, `failed` what was not taken.

    A request's ids follow from its record and this process's secret, so nothing has to be kept until it is over,
    and a request that is tried again shows engines the same span.
    """

    def __init__(self, endpoint: str, dropped: Numbers, failed: Numbers) -> None:
        self._endpoint = endpoint
        self._dropped = dropped
        self._failed = failed
        self._secret = os.urandom(32)
        self._thread = BatchThread("tracing", self._export, capacity=_CAPACITY, chunk=_CHUNK, delay=_DELAY)
        self._spans: Spans

    def open(self) -> None:
        """Raises InputError where OpenTelemetry is not installed."""
        try:
            spans = importlib.import_module("router.observe.spans")
        except ModuleNotFoundError as error:
            raise InputError(
                f"otlp_endpoint {self._endpoint}: {error.name} is not installed; pip install 'twinspeed[tracing]'."
            ) from None
        self._spans = spans.Spans(self._endpoint)
        self._thread.start()

    async def close(self) -> None:
        """Exports what waits."""
        await self._thread.close(_CLOSE_TIMEOUT)
        self._spans.close()

    def context(self, record: RequestRecord) -> Context:
        """The request's own span: a child of the client's, or the first of a trace."""
        seed = f"{record.started_at!r} {record.request_id}".encode()
        digest = blake2b(seed, digest_size=24, key=self._secret).hexdigest()
        if record.traceparent is None:
            return Context(digest[16:], digest[:16], None, _SAMPLED)
        _, trace, parent, flags = record.traceparent.split("-")
        return Context(trace, digest[:16], parent, int(flags, 16))

    def traceparent(self, record: RequestRecord) -> bytes:
        """The header that makes an engine's spans children of the request's."""
        context = self.context(record)
        return f"00-{context.trace}-{context.span}-{context.flags:02x}".encode()

    def write(self, record: RequestRecord) -> None:
        """Returns at once. The record must not change any more."""
        if not self._thread.put(record):
            self._dropped[0] += 1.0

    def _export(self, records: list[RequestRecord]) -> None:
        contexts = [(record, self.context(record)) for record in records]
        sampled = [(record, context) for record, context in contexts if context.sampled]
        if sampled and not self._spans.export(sampled):
            self._failed[0] += len(sampled)
