"""The router's Prometheus metrics, with each variant's label children resolved once."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Seconds. From a small model's cached answer to a long completion.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# The label of requests that were refused before a variant was known.
NO_VARIANT = "none"


@dataclass(frozen=True, slots=True)
class VariantMetrics:
    """One variant's children."""

    in_flight: Gauge
    first_byte: Histogram
    seconds: Histogram
    disconnects: Counter


class Metrics:
    """One registry per app, so that two apps in a process do not share counts."""

    def __init__(self, variants: Iterable[str]) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "twinspeed_router_requests_total",
            "Requests by the status sent; 499: the client left before one was.",
            ["variant", "status"],
            registry=registry,
        )
        self._counted: dict[tuple[str, int], Counter] = {}
        in_flight = Gauge("twinspeed_router_in_flight", "Requests being forwarded now.", ["variant"], registry=registry)
        first_byte = Histogram(
            "twinspeed_router_time_to_first_byte_seconds",
            "From the request's last byte to the first byte of the response's body.",
            ["variant"],
            buckets=_BUCKETS,
            registry=registry,
        )
        seconds = Histogram(
            "twinspeed_router_request_seconds",
            "From the request's last byte to the response's last, or to its failure.",
            ["variant"],
            buckets=_BUCKETS,
            registry=registry,
        )
        disconnects = Counter(
            "twinspeed_router_client_disconnects_total",
            "Clients that left before their response was complete.",
            ["variant"],
            registry=registry,
        )
        self.variants = {
            variant: VariantMetrics(
                in_flight.labels(variant),
                first_byte.labels(variant),
                seconds.labels(variant),
                disconnects.labels(variant),
            )
            for variant in variants
        }

    def count(self, variant: str, status: int) -> None:
        """Counts one finished request."""
        key = (variant, status)
        child = self._counted.get(key)
        if child is None:
            child = self._counted[key] = self._requests.labels(variant, str(status))
        child.inc()
