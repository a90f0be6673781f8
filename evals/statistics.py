"""Medians and their intervals from few observations."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A figure with the 95 % interval of its bootstrap distribution."""

    value: float
    low: float
    high: float
    n: int


def median(groups: Sequence[Sequence[float]], *, seed: int) -> Estimate:
    """Median of all observations; whole groups are resampled, since repetitions of one prompt are not independent."""
    return _estimate(groups, statistics.median, seed)


def mean(groups: Sequence[Sequence[float]], *, seed: int) -> Estimate:
    """Mean of all observations, resampled like `median`."""
    return _estimate(groups, statistics.fmean, seed)


def _estimate(groups: Sequence[Sequence[float]], of: Callable[[list[float]], float], seed: int) -> Estimate:
    pooled = [value for group in groups for value in group]
    rng = random.Random(seed)
    resampled = sorted(
        of([value for group in rng.choices(groups, k=len(groups)) for value in group]) for _ in range(_RESAMPLES)
    )
    edge = round(_RESAMPLES * 0.025)
    return Estimate(of(pooled), resampled[edge], resampled[-edge - 1], len(pooled))
