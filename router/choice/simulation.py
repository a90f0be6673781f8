"""A fleet of simulated engines behind a real `Model`, fed with a trace.

An engine works on up to `max_num_seqs` requests, the others wait in order of arrival. A request's first token takes
TTFT(batch as it begins, prompt tokens that are not cached); each further one takes TPOT(batch), with the batch of the
moment. Both are the release's, without noise, as `router.choice.speed` reads them; so a replay shows what the policy
makes of a fleet that is as its release says, not whether it is. What an engine has of a session it keeps for ever.
While it works it costs its hardware's price, shared equally by the requests in it; idle hardware costs nothing.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from router.choice.demand import BUSY, Decision, Demand
from router.choice.model import Model
from router.choice.replica import Replica
from router.choice.speed import FIXED_SHARE, SHARE_PER_TOKEN, Rates
from router.choice.trace import TraceRecord
from router.choice.variant import Variant, build
from router.config import ModelSettings
from router.record import Usage
from twinspeed.release import Release

Pin = Callable[[int], str | None]
"""The variant that the trace's request of this number is pinned to."""


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one request. Seconds from its arrival at the router; nano-USD."""

    variant: str
    reason: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    cost: float
    loss: float | None
    """As the trace has it, or else the bound of the release's evidence."""
    in_time: bool | None
    """None where it had no deadline."""


@dataclass(slots=True, eq=False)
class _Job:
    number: int
    record: TraceRecord
    decision: Decision
    sent: float
    cached: int = 0
    first_token: float = 0.0
    prefill_left: float = 0.0
    tokens_left: float = 0.0
    cost: float = 0.0


class _Engine:
    """One replica. Between two of its events nothing in it changes speed."""

    def __init__(self, replica: Replica, variant: Variant) -> None:
        self.replica = replica
        self.next_event = inf
        self._variant = variant
        self._now = 0.0
        self._active: list[_Job] = []
        self._waiting: deque[_Job] = deque()
        self._kept: dict[str, int] = {}

    def add(self, job: _Job, now: float) -> None:
        self.advance(now)
        self._waiting.append(job)
        self._replan()

    def advance(self, now: float) -> list[_Job]:
        """Works until `now`, which is not beyond the next event; returns what is finished."""
        elapsed, self._now = now - self._now, now
        batch = len(self._active)
        finished = []
        for job in self._active:
            job.cost += elapsed * self._variant.nano_per_s / batch
            if job.first_token:
                job.tokens_left -= elapsed / self._tpot(job, batch)
            else:
                job.prefill_left -= elapsed
                if job.prefill_left <= 1e-9:
                    job.first_token = now
            if job.first_token and job.tokens_left <= 1e-9:
                finished.append(job)
        for job in finished:
            self._active.remove(job)
            if job.record.session is not None:
                self._kept[job.record.session] = job.record.prompt_tokens + job.record.output_tokens
        self._replan()
        return finished

    def _replan(self) -> None:
        while self._waiting and len(self._active) < self._rates(self._waiting[0]).largest:
            job = self._waiting.popleft()
            self._active.append(job)
            record = job.record
            job.cached = min(self._kept.get(record.session or "", 0), record.prompt_tokens)
            job.tokens_left = record.output_tokens - 1
            ttft = self._rates(job).curve.ttft[len(self._active)]
            job.prefill_left = ttft * (FIXED_SHARE + SHARE_PER_TOKEN * (record.prompt_tokens - job.cached))
        batch = len(self._active)
        left = (
            job.tokens_left * self._tpot(job, batch) if job.first_token else job.prefill_left for job in self._active
        )
        self.next_event = self._now + min(left, default=inf)
        self.replica.running, self.replica.waiting = batch, len(self._waiting)

    def _rates(self, job: _Job) -> Rates:
        return self._variant.speed.rates(job.record.task_kind, 0.0)

    def _tpot(self, job: _Job, batch: int) -> float:
        return self._rates(job).curve.tpot[batch]


def simulate(
    trace: Sequence[TraceRecord],
    settings: ModelSettings,
    release: Release | None,
    replicas: Mapping[str, int],
    pin: Pin = lambda _: None,
) -> list[Served]:
    """What came of each request of the trace.

    Args:
        replicas: how many each variant has.

    Raises:
        ApiError: a request cannot be served by this fleet.
    """
    truth = build(settings, release, 0.0)
    fleet = [
        Replica(
            f"http://{name}-{number}",
            name,
            f"{settings.name}:{name}",
            max_in_flight=settings.variants[name].max_in_flight,
            ready=True,
        )
        for name, count in replicas.items()
        for number in range(count)
    ]
    model = Model(settings, release, fleet)
    engines = {replica: _Engine(replica, truth[replica.variant]) for replica in fleet}
    served: dict[int, Served] = {}
    queue: deque[int] = deque()
    arrived = 0
    while len(served) < len(trace):
        engine = min(engines.values(), key=lambda each: each.next_event)
        if arrived < len(trace) and trace[arrived].arrival_s <= engine.next_event:
            now = trace[arrived].arrival_s
            queue.append(arrived)
            arrived += 1
        else:
            now = engine.next_event
            for job in engine.advance(now):
                engine.replica.in_flight -= 1
                served[job.number] = _finish(job, model, truth[job.decision.replica.variant], now)
        while queue:
            number = queue[0]
            decision = model.choose(_demand(trace[number], pin(number)), now)
            if decision is BUSY:
                break
            queue.popleft()
            decision.replica.in_flight += 1
            engines[decision.replica].add(_Job(number, trace[number], decision, now), now)
    return [served[number] for number in range(len(trace))]


def _demand(record: TraceRecord, pin: str | None) -> Demand:
    return Demand(
        prompt_tokens=record.prompt_tokens,
        pin=pin,
        task_kind=record.task_kind,
        session=record.session,
        slo_ttft_s=record.slo_ttft_s,
        slo_tpot_s=record.slo_tpot_s,
    )


def _finish(job: _Job, model: Model, variant: Variant, now: float) -> Served:
    record, decision = job.record, job.decision
    more = record.output_tokens - 1
    tpot = (now - job.first_token) / more if more else 0.0
    usage = Usage(record.prompt_tokens, record.output_tokens, job.cached)
    model.observe(decision, usage, ttft_s=job.first_token - job.sent, tpot_s=tpot if more else None, now=now)
    ttft = job.first_token - record.arrival_s
    loss = record.loss(variant.name)
    in_time = None
    if record.slo_ttft_s is not None or record.slo_tpot_s is not None:
        in_time = ttft <= (record.slo_ttft_s or inf) and tpot <= (record.slo_tpot_s or inf)
    return Served(
        variant.name,
        decision.reason,
        ttft,
        tpot,
        now - record.arrival_s,
        job.cost,
        variant.traits.loss(record.task_kind) if loss is None else loss,
        in_time,
    )
