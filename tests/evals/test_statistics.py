"""Medians, means, and intervals that know that repetitions of one prompt are not independent."""

import random

import pytest

from evals import statistics

pytestmark = pytest.mark.unit


def test_the_value_is_that_of_all_observations() -> None:
    groups = [[1.0, 2.0, 3.0], [10.0]]
    median, mean = statistics.median(groups, seed=1), statistics.mean(groups, seed=1)
    assert (median.value, median.n) == (2.5, 4)
    assert (mean.value, mean.n) == (4.0, 4)


def test_the_interval_depends_on_the_seed_alone() -> None:
    groups = [[float(value)] for value in random.Random(3).sample(range(1000), 12)]
    assert statistics.mean(groups, seed=1) == statistics.mean(groups, seed=1)
    assert statistics.mean(groups, seed=1) != statistics.mean(groups, seed=2)


def test_the_interval_contains_the_value() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        groups = [[rng.lognormvariate(0, 1) for _ in range(3)] for _ in range(6)]
        for estimate in (statistics.median(groups, seed=seed), statistics.mean(groups, seed=seed)):
            assert estimate.low <= estimate.value <= estimate.high, f"seed {seed}"
            assert estimate.low < estimate.high, f"seed {seed}"


def test_repeating_an_observation_within_its_prompt_does_not_narrow_the_interval() -> None:
    once = [[float(value)] for value in (3, 8, 1, 9, 5, 4)]
    often = [group * 50 for group in once]
    as_if_independent = [[value] for group in often for value in group]
    clustered, plain = statistics.mean(often, seed=5), statistics.mean(once, seed=5)
    independent = statistics.mean(as_if_independent, seed=5)
    assert (clustered.low, clustered.high) == pytest.approx((plain.low, plain.high))
    assert independent.high - independent.low < (plain.high - plain.low) / 3


def test_one_prompt_tells_nothing_of_others() -> None:
    estimate = statistics.median([[1.0, 5.0, 9.0]], seed=1)
    assert (estimate.value, estimate.low, estimate.high) == (5.0, 5.0, 5.0)
