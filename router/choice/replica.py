"""One replica as the choice sees it: what the router counts itself, and what the engine reports."""

from dataclasses import dataclass
from math import inf


@dataclass(slots=True, eq=False)
class Replica:
    """One engine of one variant. The router keeps it up to date; times in seconds of the `now` given to the choice."""

    url: str
    variant: str
    model_id: str
    """`NAME:VARIANT`, as the engine knows it."""
    max_in_flight: int = 256
    in_flight: int = 0
    """This router's own requests."""
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of the engine's KV cache in use, 0 to 1."""
    ready: bool = False
    draining: bool = False
    breaker_open: bool = False
    ready_since: float = -inf
    """From here its share grows, over the fleet's `slow_start`."""
    turn: float = 0.0
    """How much of its share it has had; kept by the balance."""

    @property
    def open(self) -> bool:
        """Whether it may get requests at all."""
        return self.ready and not self.draining and not self.breaker_open
