"""The one door to metrics, access log and traces."""

import asyncio
import sys
from pathlib import Path

from router.config import RouterConfig
from router.observe import families
from router.observe.access_log import AccessLog
from router.observe.cells import Cells, SharedCells
from router.observe.exposition import render
from router.observe.metrics import Metrics
from router.observe.tracing import Tracer, read_traceparent
from router.record import NANO, RequestRecord

# Seconds for which a thread at work keeps the event loop from going on; Python's default is 5 ms.
_SWITCH_INTERVAL = 0.0005


class Observer:
    """What one sees of one router process. All but `render` belongs to the event loop's thread.

    `shared` is a new folder that the router's worker processes have in common: whichever of them is asked then
    renders the metrics of all. None where there is one process.
    """

    def __init__(self, config: RouterConfig, shared: Path | None = None) -> None:
        self._cells = cells = Cells() if shared is None else SharedCells(shared)
        self._metrics = Metrics(cells)
        log_dropped, log_failed, spans_dropped, spans_failed = (
            cells.take(family, reason)
            for family, reasons in (
                (families.LOG_DROPPED, ("queue_full", "not_written")),
                (families.SPANS_DROPPED, ("queue_full", "not_taken")),
            )
            for reason in reasons
        )
        self._log = None if config.access_log is None else AccessLog(config.access_log, log_dropped, log_failed)
        endpoint = config.otlp_endpoint
        self._tracer = None if endpoint is None else Tracer(endpoint, spans_dropped, spans_failed)

    async def open(self) -> None:
        """Raises InputError where the access log cannot be written, or OpenTelemetry is not installed."""
        sys.setswitchinterval(_SWITCH_INTERVAL)
        if self._tracer is not None:
            self._tracer.open()
        if self._log is not None:
            self._log.open()

    async def close(self) -> None:
        """Writes and exports what waits, for some seconds at most."""
        await asyncio.gather(*(sink.close() for sink in (self._log, self._tracer) if sink is not None))
        self._cells.close()

    def observe(self, record: RequestRecord) -> None:
        """Takes a request that is over; its record must not change any more."""
        self._metrics.observe(record)
        if self._log is not None:
            self._log.write(record)
        if self._tracer is not None:
            self._tracer.write(record)

    def traceparent(self, record: RequestRecord, header: bytes | None) -> bytes | None:
        """What an engine gets as `traceparent`, and None where nothing is traced; the same for each attempt.

        Keeps the client's `header` in the record, if it is valid.
        """
        if header is not None:
            record.traceparent = read_traceparent(header)
        return None if self._tracer is None else self._tracer.traceparent(record)

    async def render(self) -> bytes:
        """The metrics in Prometheus' text format, made by another thread."""
        return await asyncio.to_thread(lambda: render(self._cells.read()))

    def reopen(self) -> None:
        """Goes on in a new access log, after the old one has been renamed."""
        if self._log is not None:
            self._log.reopen()

    def started(self, variant: str) -> None:
        """A request was placed on a replica."""
        self._metrics.in_flight(variant, 1)

    def ended(self, variant: str) -> None:
        """It has left the replica."""
        self._metrics.in_flight(variant, -1)

    def sent(self, overhead_s: float) -> None:
        """A request goes to an engine for the first time; seconds it took so far, without waiting in a lane."""
        self._metrics.overhead(overhead_s)

    def retried(self) -> None:
        self._metrics.retried()

    def limits_refused(self, code: str) -> None:
        self._metrics.count(families.LIMITS_REFUSED, code)

    def queued(self, model: str, lane: str, count: int) -> None:
        """So many requests wait in a lane now."""
        self._metrics.show(families.QUEUED, model, lane, value=count)

    def replica(self, variant: str, replica: str, *, ready: bool, breaker_open: bool) -> None:
        self._metrics.show(families.REPLICA_READY, variant, replica, value=ready)
        self._metrics.show(families.BREAKER_OPEN, replica, value=breaker_open)

    def replica_gone(self, variant: str, replica: str) -> None:
        self._metrics.hide(families.REPLICA_READY, variant, replica)
        self._metrics.hide(families.BREAKER_OPEN, replica)

    def budget_left(self, key: str, period: str, cost: int) -> None:
        """`cost` in nano-USD."""
        self._metrics.show(families.BUDGET_LEFT, key, period, value=cost / NANO)

    def key_gone(self, key: str, period: str) -> None:
        self._metrics.hide(families.BUDGET_LEFT, key, period)

    def shadowed(self, model: str, variant: str, *, agreed: bool) -> None:
        """`variant` is the shadow."""
        self._metrics.count(families.SHADOWS, model, variant, "true" if agreed else "false")

    def cascaded(self, model: str, outcome: str) -> None:
        self._metrics.count(families.CASCADES, model, outcome)
