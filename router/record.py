"""What the router knows of one request once it is over: read by metrics, log, trace and the ledger of money."""

from dataclasses import dataclass

NANO = 1_000_000_000  # nano-USD in a USD: money is counted in integers, so that it adds up


def format_usd(nano_usd: int) -> bytes:
    """USD in decimal, exact."""
    return b"%d.%09d" % divmod(nano_usd, NANO)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them; `cached` of the prompt's were found in its prefix cache."""

    prompt: int
    completion: int
    cached: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


NOTHING = Usage(0, 0)


@dataclass(slots=True)
class RequestRecord:
    """One request. Durations in seconds, money in nano-USD; None where it did not come so far."""

    request_id: str
    path: str
    started_at: float
    """Wall clock, seconds since the epoch, when the request had been read whole."""
    key_id: str | None = None
    model: str | None = None
    """The model's name, without a suffix."""
    variant: str | None = None
    replica: str | None = None
    reason: str | None = None
    lane: str = "interactive"
    tier: str = "default"
    stream: bool = False
    status: int = 0
    """As sent; 499 where the client left before one was."""
    error: str | None = None
    """The code of the error that was sent, in the head or as the stream's last event."""
    client_left: bool = False
    attempts: int = 0
    queue_s: float = 0.0
    ttft_s: float | None = None
    """From `started_at` to the first byte of the response's body."""
    e2e_s: float = 0.0
    usage: Usage | None = None
    spent_tokens: int = 0
    """On answers that the client does not get: of a hedge that lost, or of a cascade's first variant."""
    cost: int = 0
    """Of all tokens, those included."""
    predicted_ttft_s: float | None = None
    predicted_e2e_s: float | None = None
    predicted_cost: int | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    traceparent: str | None = None
    """W3C trace context as the client gave it."""

    @property
    def tpot_s(self) -> float | None:
        """(E2E − TTFT) ÷ (N − 1) for N ≥ 2 streamed output tokens."""
        if self.ttft_s is None or self.usage is None or self.usage.completion < 2 or not self.stream:
            return None
        return (self.e2e_s - self.ttft_s) / (self.usage.completion - 1)
