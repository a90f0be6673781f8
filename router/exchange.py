"""One request on its way, and all that it holds until it is over."""

from dataclasses import dataclass, field

from router.choice import Decision
from router.errors import Headers
from router.http.server import Request
from router.leg import Leg
from router.limits import Key, Reservation
from router.record import NOTHING, RequestRecord, Usage
from router.relay import Downstream
from router.table import Entry


@dataclass(slots=True)
class Answer:
    """A whole answer that has yet to be sent."""

    status: int
    headers: Headers
    body: bytes


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and its lease: what it holds of limits, of replicas and of engines' time."""

    request: Request
    record: RequestRecord
    downstream: Downstream | None
    """Where a stream goes; None where the answer is wanted whole."""
    started: float
    """`perf_counter` when the request had been read."""
    key: Key | None = None
    reservation: Reservation | None = None
    entry: Entry | None = None
    legs: list[Leg] = field(default_factory=list)
    """Those that are on their way: one, or two where one hedges the other."""
    decision: Decision | None = None
    """Of the leg that counts: the winner's, or the latest."""
    sent_at: float | None = None
    """`perf_counter` when the request first went to an engine."""
    usage: Usage | None = None
    """Of the answer that the client gets, or of what was made of it."""
    spent: Usage = NOTHING
    """On answers that the client does not get."""
    spent_cost: int = 0
    """Nano-USD, likewise."""

    def spend(self, usage: Usage, cost: int) -> None:
        """Adds an answer that was made and is not the one that the client gets."""
        self.spent = Usage(
            self.spent.prompt + usage.prompt,
            self.spent.completion + usage.completion,
            self.spent.cached + usage.cached,
        )
        self.spent_cost += cost

    @property
    def comments_cost(self) -> bool:
        """Whether the client wants a stream to say what it cost, in a comment before its end."""
        return self.request.header(b"x-twinspeed-cost") == b"comment"

    @property
    def overhead_s(self) -> float | None:
        """The router's own time before the request went to an engine, without waiting in a lane; None before that."""
        return None if self.sent_at is None else self.sent_at - self.started - self.record.queue_s
