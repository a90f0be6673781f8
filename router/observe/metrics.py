"""Counts what a finished request tells, and keeps the few gauges that tell of now."""

import math
from bisect import bisect_left
from time import monotonic

from router.observe import families
from router.observe.cells import Cells, Numbers
from router.observe.families import Family
from router.record import NANO, RequestRecord

# The label of what was not known before the request was refused.
NONE = "none"


class _Histogram:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_numbers")

    def __init__(self, cells: Cells, family: Family, *labels: str) -> None:
        self._bounds = family.buckets
        self._numbers = cells.take(family, *labels)

    def observe(self, value: float) -> None:
        numbers = self._numbers
        numbers[bisect_left(self._bounds, value)] += 1.0
        numbers[-1] += value


class _Served:
    """The series of one model and variant."""

    def __init__(self, cells: Cells, model: str, variant: str) -> None:
        self._cells = cells
        self._labels = model, variant
        self.first_byte = _Histogram(cells, families.FIRST_BYTE, model, variant)
        self.tpot = _Histogram(cells, families.TPOT, model, variant)
        self.seconds = _Histogram(cells, families.SECONDS, model, variant)
        self.prompt, self.cached, self.completion = (
            cells.take(families.TOKENS, model, variant, kind) for kind in ("prompt", "cached", "completion")
        )
        self.cost = cells.take(families.COST, model, variant)
        self.ttft_ratio, self.e2e_ratio, self.cost_ratio = (
            _Histogram(cells, families.PREDICTION, model, variant, kind) for kind in ("ttft", "e2e", "cost")
        )
        self.ttft_violations, self.tpot_violations = (
            cells.take(families.SLO_VIOLATIONS, model, variant, kind) for kind in ("ttft", "tpot")
        )
        self._statuses: dict[int, Numbers] = {}
        self._reasons: dict[str, Numbers] = {}

    def status(self, status: int) -> Numbers:
        numbers = self._statuses.get(status)
        if numbers is None:
            numbers = self._statuses[status] = self._cells.take(families.REQUESTS, *self._labels, str(status))
        return numbers

    def reason(self, reason: str) -> Numbers:
        numbers = self._reasons.get(reason)
        if numbers is None:
            numbers = self._reasons[reason] = self._cells.take(families.CHOICES, *self._labels, reason)
        return numbers


class Metrics:
    """All series of this process. Its methods run in the event loop's thread."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._served: dict[tuple[str | None, str | None], _Served] = {}
        self._lanes: dict[str, _Histogram] = {}
        self._in_flight: dict[str, Numbers] = {}
        self._overhead = _Histogram(cells, families.OVERHEAD)
        self._disconnects = cells.take(families.DISCONNECTS)
        self._retries = cells.take(families.RETRIES)

    def observe(self, record: RequestRecord) -> None:
        """Counts one finished request."""
        key = record.model, record.variant
        served = self._served.get(key)
        if served is None:
            served = self._served[key] = _Served(self._cells, record.model or NONE, record.variant or NONE)
        served.status(record.status)[0] += 1.0
        served.seconds.observe(record.e2e_s)
        if record.reason is not None:
            served.reason(record.reason)[0] += 1.0
        if record.attempts:
            lane = self._lanes.get(record.lane)
            if lane is None:
                lane = self._lanes[record.lane] = _Histogram(self._cells, families.QUEUE, record.lane)
            lane.observe(record.queue_s)
        if record.client_left:
            self._disconnects[0] += 1.0
        if record.error is not None:
            self.count(families.ERRORS, record.error)
        usage = record.usage
        if usage is not None:
            served.prompt[0] += usage.prompt
            served.cached[0] += usage.cached
            served.completion[0] += usage.completion
            served.cost[0] += record.cost / NANO
        ttft = record.ttft_s
        if ttft is None:
            return
        served.first_byte.observe(ttft)
        if record.slo_ttft_s is not None and ttft > record.slo_ttft_s:
            served.ttft_violations[0] += 1.0
        tpot = record.tpot_s
        if tpot is not None:
            served.tpot.observe(tpot)
            if record.slo_tpot_s is not None and tpot > record.slo_tpot_s:
                served.tpot_violations[0] += 1.0
        # What was cut short says nothing about a prediction of the whole.
        if record.status >= 400 or record.client_left or record.error is not None:
            return
        if record.predicted_ttft_s:
            served.ttft_ratio.observe(ttft / record.predicted_ttft_s)
        if record.predicted_e2e_s:
            served.e2e_ratio.observe(record.e2e_s / record.predicted_e2e_s)
        if record.predicted_cost and usage is not None:
            served.cost_ratio.observe(record.cost / record.predicted_cost)

    def overhead(self, seconds: float) -> None:
        self._overhead.observe(seconds)

    def in_flight(self, variant: str, change: int) -> None:
        numbers = self._in_flight.get(variant)
        if numbers is None:
            numbers = self._in_flight[variant] = self._cells.take(families.IN_FLIGHT, variant)
            # What a process that is gone has left there is not this one's.
            numbers[0] = 0.0
        numbers[0] += change

    def retried(self) -> None:
        self._retries[0] += 1.0

    def count(self, family: Family, *labels: str, by: int = 1) -> None:
        """Adds to a counter."""
        self._cells.take(family, *labels)[0] += by

    def show(self, family: Family, *labels: str, value: float) -> None:
        """Sets a gauge."""
        numbers = self._cells.take(family, *labels)
        numbers[0], numbers[1] = value, monotonic()

    def hide(self, family: Family, *labels: str) -> None:
        """Takes a gauge off the page until it is set again."""
        self._cells.take(family, *labels)[0] = math.nan
