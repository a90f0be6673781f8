"""How close a variant is to *standard*, token by token, on standard's own answers.

The variant's engine reads prompt and answer as one given text and returns, for each answer token, its log-probability
and its rank (teacher forcing). Whole generated texts are not compared: two equally good texts part at the first near-tie.
"""

from dataclasses import dataclass

import openai

from evals.speed import Sample
from twinspeed.errors import TwinspeedError


@dataclass(frozen=True)
class Scored:
    """One answer under one variant, per answer token."""

    variant: str
    workload: str
    prompt_id: str
    log_probabilities: tuple[float, ...]
    top1: tuple[bool, ...]


def score(client: openai.OpenAI, model: str, variant: str, answer: Sample) -> Scored:
    """Log-probability (natural log) and top-1 hit of each token of `answer` under `variant`."""
    completion = client.completions.create(
        model=f"{model}:{variant}",
        prompt=[*answer.prompt_token_ids, *answer.token_ids],
        max_tokens=1,
        temperature=0,
        extra_body={"prompt_logprobs": 1},
    )
    positions = (completion.choices[0].model_extra or {}).get("prompt_logprobs")
    expected = len(answer.prompt_token_ids) + len(answer.token_ids)
    if not isinstance(positions, list) or len(positions) != expected:
        raise TwinspeedError(f"{model}:{variant} returned no log-probabilities for its prompt; is its engine vLLM?")
    entries = [
        position[str(token)]
        for position, token in zip(positions[len(answer.prompt_token_ids) :], answer.token_ids, strict=True)
    ]
    return Scored(
        variant=variant,
        workload=answer.workload,
        prompt_id=answer.prompt_id,
        log_probabilities=tuple(entry["logprob"] for entry in entries),
        top1=tuple(entry["rank"] == 1 for entry in entries),
    )
