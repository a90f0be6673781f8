"""What Prometheus reads: the numbers of all worker processes as one."""

import itertools
import math
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.observe.cells import Series
from router.observe.families import FAMILIES, Family

# By family, then by label values.
_Merged = dict[str, dict[tuple[str, ...], list[float]]]


def render(series: Iterable[Series]) -> bytes:
    """The page in Prometheus' text format, `prometheus_client.CONTENT_TYPE_LATEST`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(_merge(series)))
    return generate_latest(registry)


def _merge(series: Iterable[Series]) -> _Merged:
    """Counts add up, those of processes that are gone too; a gauge is shown by the living, unless it is NaN."""
    merged: _Merged = {family.name: {} for family in FAMILIES}
    for each in series:
        family, values = each.family, each.values
        if family.kind == "gauge" and (not each.live or math.isnan(values[0])):
            continue
        known = merged[family.name]
        others = known.get(each.labels)
        if others is None:
            known[each.labels] = values
        elif family.across == "sum":
            known[each.labels] = [one + other for one, other in zip(others, values, strict=True)]
        elif family.across == "max":
            known[each.labels] = max(others, values)
        else:
            known[each.labels] = max(others, values, key=lambda value_and_time: value_and_time[1])
    return merged


class _Collected(Collector):
    """Hands merged numbers to prometheus_client."""

    def __init__(self, merged: _Merged) -> None:
        self._merged = merged

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            yield _metric(family, self._merged[family.name])


def _metric(family: Family, series: dict[tuple[str, ...], list[float]]) -> Metric:
    if family.kind == "counter":
        counter = CounterMetricFamily(family.name, family.help, labels=family.labels)
        for labels, values in series.items():
            counter.add_metric(labels, values[0])
        return counter
    if family.kind == "gauge":
        gauge = GaugeMetricFamily(family.name, family.help, labels=family.labels)
        for labels, values in series.items():
            gauge.add_metric(labels, values[0])
        return gauge
    histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*map(str, family.buckets), "+Inf"]
    for labels, values in series.items():
        counts = itertools.accumulate(values[:-1])
        histogram.add_metric(labels, list(zip(bounds, counts, strict=True)), values[-1])
    return histogram
