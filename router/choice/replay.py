"""What the policy would have made of a trace, beside `standard` alone, another variant alone, and chance.

Chance is a mix of both at the policy's own spend, or as near to it as a mix comes: what the policy gains over it, it
gains by choosing. How engines are simulated, and what that leaves out, `router.choice.simulation` says.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from router.choice.simulation import Served, simulate
from router.choice.trace import TraceRecord
from router.config import DEFAULT_VARIANT, ModelSettings
from router.record import NANO
from twinspeed.errors import InputError
from twinspeed.release import Release

_RESAMPLES = 1000
# Where the mix's spend is near enough, and how it is looked for.
_SPEND_TOLERANCE = 0.002
_GRID = 8
_BISECTIONS = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval, from a bootstrap over sessions: turns of one are not independent."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way of choosing."""

    name: str
    spend_usd: float
    """The whole trace's."""
    cost_usd: Estimate
    """Per request."""
    cost_ratio: Estimate | None
    """To `standard` alone, request by request; None where that costs nothing."""
    quality_loss: Estimate | None
    """None where that of some request is not known."""
    slo_attainment: Estimate | None
    """Of the requests with a deadline; None where there are none."""
    shares: Mapping[str, float]
    """Of the requests, by variant."""


@dataclass(frozen=True, slots=True)
class Replay:
    requests: int
    policy: Outcome
    standard: Outcome
    alternative: Outcome
    random_mix: Outcome
    mix_share: float
    """The alternative's share of the sessions in the mix."""


def replay(
    trace: Sequence[TraceRecord],
    settings: ModelSettings,
    release: Release | None,
    replicas: Mapping[str, int],
    *,
    alternative: str = "fast",
    seed: int = 0,
) -> Replay:
    """Runs the trace four ways through the same fleet.

    Args:
        trace: in the order of arrival.
        replicas: how many each variant has; one or more of `standard` and of the alternative.

    Raises:
        InputError: the trace is empty, or a variant to compare has no replica.
        ApiError: a request cannot be served by this fleet.
    """
    if not trace:
        raise InputError("the trace holds no requests")
    for name in (DEFAULT_VARIANT, alternative):
        if replicas.get(name, 0) < 1:
            raise InputError(f"a replay compares {DEFAULT_VARIANT} and {alternative}: {name} has no replica")

    sessions = [record.session or f"#{number}" for number, record in enumerate(trace)]
    draw = random.Random(seed)
    luck = {session: draw.random() for session in dict.fromkeys(sessions)}

    def mix(share: float) -> list[Served]:
        def pin(number: int) -> str:
            return alternative if luck[sessions[number]] < share else DEFAULT_VARIANT

        return simulate(trace, settings, release, replicas, pin)

    policy = simulate(trace, settings, release, replicas)
    standard, other = mix(0.0), mix(1.0)
    share, mixed = _mix_at(_spend(policy), mix, standard, other)

    def outcome(name: str, served: Sequence[Served]) -> Outcome:
        return _outcome(name, served, standard, sessions, seed)

    return Replay(
        len(trace),
        outcome("policy", policy),
        outcome(f"always {DEFAULT_VARIANT}", standard),
        outcome(f"always {alternative}", other),
        outcome("random mix", mixed),
        share,
    )


def _mix_at(
    spend: float, mix: Callable[[float], list[Served]], standard: list[Served], other: list[Served]
) -> tuple[float, list[Served]]:
    """The alternative's share with which the mix spends most nearly as much.

    Split traffic makes smaller batches, so that a mix may cost more than either end: first a grid, then bisection
    between two neighbours of which one spends more and the other less.
    """
    runs = {step / _GRID: mix(step / _GRID) for step in range(1, _GRID)} | {0.0: standard, 1.0: other}
    over = {share: _spend(served) - spend for share, served in sorted(runs.items())}
    low, high = next((pair for pair in pairwise(over) if over[pair[0]] * over[pair[1]] <= 0), (0.0, 0.0))
    for _ in range(_BISECTIONS):
        if low == high or min(map(abs, over.values())) <= _SPEND_TOLERANCE * spend:
            break
        share = (low + high) / 2
        runs[share] = mix(share)
        over[share] = _spend(runs[share]) - spend
        if over[share] * over[low] <= 0:
            high = share
        else:
            low = share
    best = min(over, key=lambda each: abs(over[each]))
    return best, runs[best]


def _spend(served: Sequence[Served]) -> float:
    return sum(each.cost for each in served)


def _outcome(
    name: str, served: Sequence[Served], standard: Sequence[Served], sessions: Sequence[str], seed: int
) -> Outcome:
    costs = [each.cost / NANO for each in served]
    base = [each.cost / NANO for each in standard]
    ones = [1.0] * len(served)
    losses = [each.loss for each in served if each.loss is not None]
    dated = [0.0 if each.in_time is None else 1.0 for each in served]
    variants = [each.variant for each in served]
    return Outcome(
        name,
        sum(costs),
        _ratio(costs, ones, sessions, seed),
        _ratio(costs, base, sessions, seed) if sum(base) else None,
        _ratio(losses, ones, sessions, seed) if len(losses) == len(served) else None,
        _ratio([float(each.in_time or False) for each in served], dated, sessions, seed) if any(dated) else None,
        {variant: variants.count(variant) / len(variants) for variant in sorted(set(variants))},
    )


def _ratio(above: Sequence[float], below: Sequence[float], sessions: Sequence[str], seed: int) -> Estimate:
    """Sum over sum, with an interval from resampling whole sessions."""
    sums: dict[str, tuple[float, float]] = {}
    for session, upper, lower in zip(sessions, above, below, strict=True):
        one, two = sums.get(session, (0.0, 0.0))
        sums[session] = one + upper, two + lower
    pairs = list(sums.values())
    draw = random.Random(seed)
    ratios = []
    for _ in range(_RESAMPLES):
        uppers, lowers = zip(*draw.choices(pairs, k=len(pairs)), strict=True)
        # A resample without any request with a deadline says nothing.
        if total := sum(lowers):
            ratios.append(sum(uppers) / total)
    ratios.sort()
    last = len(ratios) - 1
    return Estimate(sum(above) / sum(below), ratios[round(0.025 * last)], ratios[round(0.975 * last)])
