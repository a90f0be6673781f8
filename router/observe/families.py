"""Every metric the router has: its name, type, labels and meaning."""

from dataclasses import dataclass
from typing import Literal

# Seconds. From a small model's cached answer to a long completion.
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Seconds for one token of a stream: 1000 to 1 tokens/s.
_TOKEN_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_OVERHEAD_S = (0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1)
_RATIO = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)

Across = Literal["sum", "max", "latest"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `across` says how a gauge's values of several worker processes become one."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    across: Across = "sum"

    @property
    def cells(self) -> int:
        """Numbers that one series takes: a counter's value; a gauge's, and when it was set; buckets, +Inf and sum."""
        return {"counter": 1, "gauge": 2, "histogram": len(self.buckets) + 2}[self.kind]


def _counter(name: str, labels: tuple[str, ...], meaning: str) -> Family:
    return Family(f"twinspeed_router_{name}", "counter", labels, meaning)


def _gauge(name: str, labels: tuple[str, ...], across: Across, meaning: str) -> Family:
    return Family(f"twinspeed_router_{name}", "gauge", labels, meaning, across=across)


def _histogram(name: str, labels: tuple[str, ...], buckets: tuple[float, ...], meaning: str) -> Family:
    return Family(f"twinspeed_router_{name}", "histogram", labels, meaning, buckets)


_SERVED = ("model", "variant")

REQUESTS = _counter(
    "requests_total", (*_SERVED, "status"), "Requests by the HTTP status sent; 499: the client left before one was."
)
FIRST_BYTE = _histogram(
    "time_to_first_byte_seconds",
    _SERVED,
    _REQUEST_S,
    "From the request's last byte to the first byte of the response's body.",
)
TPOT = _histogram(
    "tpot_seconds",
    _SERVED,
    _TOKEN_S,
    "Time per output token of a stream: (request − time to first byte) ÷ (output tokens − 1).",
)
SECONDS = _histogram(
    "request_seconds",
    _SERVED,
    _REQUEST_S,
    "From the request's last byte to the response's last, or to its failure.",
)
QUEUE = _histogram("queue_seconds", ("lane",), _REQUEST_S, "Time that a request waited in its lane; 0 counts too.")
OVERHEAD = _histogram(
    "overhead_seconds",
    (),
    _OVERHEAD_S,
    "The router's own time from the request's last byte until it is sent to an engine, without waiting in a lane.",
)
IN_FLIGHT = _gauge("in_flight", ("variant",), "sum", "Requests that engines are working on now.")
QUEUED = _gauge("queued", ("model", "lane"), "sum", "Requests that wait in a lane now.")
BREAKER_OPEN = _gauge(
    "breaker_open", ("replica",), "max", "1 while a worker's circuit breaker keeps requests from the replica, else 0."
)
REPLICA_READY = _gauge(
    "replica_ready", ("variant", "replica"), "latest", "1 while the replica says that it is healthy, else 0."
)
BUDGET_LEFT = _gauge(
    "budget_left_usd", ("key", "period"), "latest", "What is left of a key's budget, as of its last request."
)
TOKENS = _counter(
    "tokens_total",
    (*_SERVED, "kind"),
    "Tokens as the engine counted them: prompt, completion, and cached, which are those of the prompt's that its "
    "prefix cache had.",
)
COST = _counter("cost_usd_total", _SERVED, "What the requests cost by the variant's prices.")
CHOICES = _counter("choices_total", (*_SERVED, "reason"), "Requests by the reason for which the variant was chosen.")
PREDICTION = _histogram(
    "prediction_ratio",
    (*_SERVED, "kind"),
    _RATIO,
    "Actual ÷ predicted, of ttft, e2e and cost, for requests that were answered in full.",
)
SLO_VIOLATIONS = _counter(
    "slo_violations_total", (*_SERVED, "kind"), "Requests whose measured ttft or tpot was above what they asked for."
)
DISCONNECTS = _counter("client_disconnects_total", (), "Requests whose client left before the response was complete.")
ERRORS = _counter("errors_total", ("code",), "Errors sent, in a response's head or as a stream's last event.")
RETRIES = _counter("retries_total", (), "Attempts after a request's first.")
SHADOWS = _counter(
    "shadow_total", (*_SERVED, "agreed"), "Requests sent to a shadow variant too, by whether its answer agreed."
)
CASCADES = _counter("cascade_total", ("model", "outcome"), "Cascaded requests by their outcome.")
LIMITS_REFUSED = _counter("limits_refused_total", ("code",), "Requests refused because of a key's limits or budget.")
LOG_DROPPED = _counter(
    "access_log_dropped_total",
    ("reason",),
    "Lines that the access log lacks: its queue was full, or they could not be written.",
)
SPANS_DROPPED = _counter(
    "spans_dropped_total",
    ("reason",),
    "Spans that were not exported: their queue was full, or the collector did not take them.",
)

FAMILIES = (
    REQUESTS,
    FIRST_BYTE,
    TPOT,
    SECONDS,
    QUEUE,
    OVERHEAD,
    IN_FLIGHT,
    QUEUED,
    BREAKER_OPEN,
    REPLICA_READY,
    BUDGET_LEFT,
    TOKENS,
    COST,
    CHOICES,
    PREDICTION,
    SLO_VIOLATIONS,
    DISCONNECTS,
    ERRORS,
    RETRIES,
    SHADOWS,
    CASCADES,
    LIMITS_REFUSED,
    LOG_DROPPED,
    SPANS_DROPPED,
)
