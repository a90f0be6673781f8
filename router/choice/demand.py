"""What is asked of a choice, and what it answers."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from router.choice.prices import Prices
from router.choice.replica import Replica
from router.record import Usage

Goal = Literal["policy", "floor", "nitro"]
Reason = Literal[
    "pinned",
    "session",
    "cheapest_within_quality",
    "deadline",
    "deadline_missed",
    "fallback_load",
    "floor",
    "nitro",
    "only_capable",
    "only_ready",
    "default",
]
"""Why a replica was chosen:

`pinned`: the client named the variant. `session`: it served the session's last turn.
`cheapest_within_quality`: of several variants that are good enough, the cheapest.
`deadline`: a cheaper one would be too slow. `deadline_missed`: all are too slow, and this is the quickest.
`fallback_load`: the cheapest has no free place, or a queue.
`floor`, `nitro`: the client wants the cheapest, the quickest.
`only_capable`: others that are good enough lack what the request needs. `only_ready`: others have no ready replica.
`default`: no variant but `standard` is known to be good enough.
"""


class Busy(Enum):
    """Every replica that may serve the request has as many as it takes: wait for a place."""

    BUSY = "busy"


BUSY: Final = Busy.BUSY


@dataclass(slots=True)
class Demand:
    """One request, as far as choosing goes."""

    prompt_tokens: int
    """An estimate."""
    max_tokens: int | None = None
    pin: str | None = None
    """The one variant that may serve it."""
    goal: Goal = "policy"
    needs: frozenset[str] = frozenset()
    """What the engine has to be able to do, such as `min_p`, `logit_bias`, `logits_processors`, `image`, `audio`."""
    task_kind: str = "chat"
    """The workload whose evidence counts."""
    session: str | None = None
    prefix_hash: int | None = None
    """Equal for prompts that begin alike."""
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    max_cost: int | None = None
    """Nano-USD."""


@dataclass(slots=True)
class Decision:
    """Where a request goes, why, and what is expected of it. Money in nano-USD."""

    replica: Replica
    reason: Reason
    expected: Usage
    prices: Prices
    """At the replica's load as the request joins it."""
    predicted_ttft_s: float
    predicted_tpot_s: float
    predicted_e2e_s: float
    predicted_cost: int
    quality_loss: float | None
    """The expected loss against `standard`, 0 to 1; None where there is no evidence."""
    batch: int
    """The requests in the replica, with this one."""
    task_kind: str

    @property
    def prompt_tokens(self) -> int:
        return self.expected.prompt


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica in the light of one demand. Money in nano-USD."""

    variant: str
    replica: str
    """Its URL."""
    predicted_ttft_s: float
    predicted_tpot_s: float
    predicted_e2e_s: float
    predicted_cost: int
    compared_cost: float
    """What variants are compared by: the cost at the batch of the busiest one compared, so that none looks cheap
    merely because it is busy. Seconds of hardware where a variant of the model has no price."""
    quality_loss: float | None
    eligible: bool
    """Whether it is good enough, capable, ready and affordable and has a place. Deadlines are no part of it."""
    chosen: bool
    verdict: str
    """One sentence."""
