"""What the comparison of two engines' samples finds alike, and what it does not."""

import random

import pytest

from tests.e2e import parity

pytestmark = pytest.mark.unit

SAMPLING = parity.Sampling(temperature=0.7, top_p=1.0, top_k=0)


def scores(seed: int, *, shift: float = 0.0, improbable: float = 0.01) -> parity.Scores:
    """Scores of so many samples a prompt as the engines are asked for, each prompt with a level of its own."""
    draw = random.Random(seed)
    size = parity.SAMPLES_PER_PROMPT
    means = tuple(
        tuple(-0.3 - 0.1 * level + shift + draw.gauss(0, 0.3) for _ in range(size))
        for level in range(len(parity.PROMPTS))
    )
    shares = tuple(tuple(max(0.0, draw.gauss(improbable, 0.01)) for _ in range(size)) for _ in parity.PROMPTS)
    return parity.Scores(means=means, improbable=shares)


@pytest.mark.parametrize("seed", range(20))
def test_samples_of_one_distribution_are_alike_and_those_of_another_are_not(seed: int) -> None:
    reference = scores(seed)
    assert parity.compare(SAMPLING, reference, scores(seed + 1000)).alike
    assert not parity.compare(SAMPLING, reference, scores(seed + 1000, shift=-1.0)).alike
    assert not parity.compare(SAMPLING, reference, scores(seed + 1000, improbable=0.5)).alike
