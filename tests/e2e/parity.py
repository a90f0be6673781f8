"""Whether one engine's sampled text follows a target's distribution as another's does, by log-probabilities."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import openai

SAMPLES_PER_PROMPT = 4
TOKENS = 32

_TEXT = (
    "The old lighthouse at Carrow Point was built in 1874 by a crew of forty stonemasons. It stands 41 metres tall, "
    "and its lamp can be seen from 32 kilometres away on a clear night."
)
# Texts that the answers repeat, so that drafts are made and both accepted and refused.
PROMPTS = (
    f"Repeat this text word for word:\n\n{_TEXT}",
    f"Rewrite this text in your own words:\n\n{_TEXT}",
    "Count from one to thirty in words.",
    "Write a Python class for a bank account with deposit and withdraw methods.",
    "List ten animals, each with the sentence 'The animal is …'.",
    "Write the days of the week three times.",
)


@dataclass(frozen=True)
class Sampling:
    temperature: float
    top_p: float
    top_k: int

    def __str__(self) -> str:
        return f"T={self.temperature}, top_p={self.top_p}, top_k={self.top_k}"


SAMPLINGS = tuple(
    Sampling(temperature, top_p, top_k) for temperature in (0.3, 0.7, 1.0) for top_p, top_k in ((1.0, 0), (0.9, 20))
)


@dataclass(frozen=True)
class Scores:
    """Of one engine's samples under the target (at temperature 1, nothing cut off): per prompt, one figure a sample."""

    means: tuple[tuple[float, ...], ...]
    """Mean log-probability a token, natural logarithm."""
    improbable: tuple[tuple[float, ...], ...]
    """Share of tokens to which the target gives less than 1e-3."""


@dataclass(frozen=True)
class Difference:
    """Of two engines' samples, prompt by prompt, and that in standard errors."""

    value: float
    z: float


@dataclass(frozen=True)
class Comparison:
    sampling: Sampling
    mean: Difference
    improbable: Difference

    @property
    def alike(self) -> bool:
        """Within noise: neither figure is off by 4.5 standard errors."""
        return abs(self.mean.z) < 4.5 and abs(self.improbable.z) < 4.5


async def sample_and_score(
    sampler: openai.AsyncOpenAI, sampler_model: str, target: openai.AsyncOpenAI, target_model: str, sampling: Sampling
) -> Scores:
    """Sample from one engine, and read each sample's log-probabilities on the target engine."""
    gate = asyncio.Semaphore(16)

    async def one(prompt: str, seed: int) -> list[float]:
        async with gate:
            sampled = await sampler.chat.completions.create(
                model=sampler_model,
                messages=[{"role": "user", "content": prompt}],
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=TOKENS,
                seed=seed,
                extra_body={"top_k": sampling.top_k, "return_token_ids": True},
            )
            prompt_ids = (sampled.model_extra or {})["prompt_token_ids"]
            token_ids = (sampled.choices[0].model_extra or {})["token_ids"]
            scored = await target.completions.create(
                model=target_model,
                prompt=[*prompt_ids, *token_ids],
                max_tokens=1,
                extra_body={"prompt_logprobs": 0},
            )
        positions = (scored.choices[0].model_extra or {})["prompt_logprobs"][len(prompt_ids) :]
        return [entry[str(token)]["logprob"] for entry, token in zip(positions, token_ids, strict=True)]

    tasks = [[one(prompt, seed) for seed in range(SAMPLES_PER_PROMPT)] for prompt in PROMPTS]
    scored = [await asyncio.gather(*group) for group in tasks]
    return Scores(
        means=tuple(tuple(fmean(sample) for sample in group) for group in scored),
        improbable=tuple(
            tuple(fmean(value < math.log(1e-3) for value in sample) for sample in group) for group in scored
        ),
    )


def compare(sampling: Sampling, reference: Scores, other: Scores) -> Comparison:
    return Comparison(
        sampling,
        mean=_difference(reference.means, other.means),
        improbable=_difference(reference.improbable, other.improbable),
    )


def _difference(reference: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Difference:
    pairs = list(zip(reference, other, strict=True))
    value = fmean(fmean(mine) - fmean(theirs) for theirs, mine in pairs)
    squared_error = sum(_squared_error(theirs) + _squared_error(mine) for theirs, mine in pairs) / len(pairs) ** 2
    return Difference(value, value / math.sqrt(squared_error))


def _squared_error(values: Sequence[float]) -> float:
    # Near-greedy samples of one prompt can be equal to the last token; an error of nought would make any z infinite.
    return max(variance(values), 1e-4) / len(values)
