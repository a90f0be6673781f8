"""How close a variant is to *standard*, token by token, on standard's own answers.

The variant's engine reads prompt and answer as one given text and returns, for each answer token, its log-probability
and its rank (teacher forcing). Whole generated texts are not compared: equally good ones part at the first near-tie.
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
    """Log-probability (natural log) and top-1 hit of each token of `answer` under `variant`.

    Raises:
        TwinspeedError: the answer has no token ids, another variant scored it, or no log-probabilities came back.
    """
    wanted = f"{model}:{variant}"
    if not answer.prompt_token_ids or not answer.token_ids:
        raise TwinspeedError(
            f"{model}:{answer.variant} returned no token ids with its answer to {answer.prompt_id!r}; "
            "is its engine vLLM?"
        )
    completion = client.completions.create(
        model=wanted,
        prompt=[*answer.prompt_token_ids, *answer.token_ids],
        max_tokens=1,
        temperature=0,
        extra_body={"prompt_logprobs": 1},
    )
    if completion.model != wanted:
        raise TwinspeedError(f"asked for {wanted}, but {completion.model} answered")
    positions = (completion.choices[0].model_extra or {}).get("prompt_logprobs")
    expected = len(answer.prompt_token_ids) + len(answer.token_ids)
    if not isinstance(positions, list) or len(positions) != expected:
        raise TwinspeedError(f"{wanted} returned no log-probabilities for its prompt; is its engine vLLM?")
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
