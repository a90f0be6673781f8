"""Speed of variants side by side: the same prompts through one endpoint, in alternating order, one stream at a time.

TTFT is the time from sending the request to the first text; TPOT = (E2E − TTFT) / (N − 1); output tokens/s = N / E2E;
N is the number of completion tokens in the response's `usage`, never a count of chunks: under speculation one chunk
holds several tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import openai
from openai.types import CompletionUsage

from evals.workloads import Prompt, Workload
from twinspeed.errors import TwinspeedError


@dataclass(frozen=True)
class Sample:
    """One answered request. Times in seconds."""

    workload: str
    variant: str
    prompt_id: str
    round: int
    output_tokens: int
    ttft_s: float
    e2e_s: float
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.e2e_s

    @property
    def tpot_s(self) -> float:
        return (self.e2e_s - self.ttft_s) / max(1, self.output_tokens - 1)


def measure(
    client: openai.OpenAI,
    model: str,
    variants: Sequence[str],
    workloads: Sequence[Workload],
    rounds: int,
    progress: Callable[[float, str], None],
) -> list[Sample]:
    """Answer every prompt `rounds` times with each variant of `model`.

    The variants take turns on each prompt, and who goes first alternates from prompt to prompt and from round to
    round, so that a drift of the machine hits all alike.
    """
    for variant in variants:
        for workload in workloads:
            ask(client, model, variant, workload.name, workload.prompts[0], round_number=-1)
    prompts = [(load, prompt) for load in workloads for prompt in load.prompts]
    samples = []
    for number in range(rounds):
        for index, (load, prompt) in enumerate(prompts):
            order = variants if (number + index) % 2 == 0 else variants[::-1]
            for variant in order:
                finished = (number * len(prompts) + index) / (rounds * len(prompts))
                progress(finished, f"round {number + 1}/{rounds}, {load.name}, {prompt.id}, {variant}")
                samples.append(ask(client, model, variant, load.name, prompt, round_number=number))
    return samples


def ask(client: openai.OpenAI, model: str, variant: str, workload: str, prompt: Prompt, *, round_number: int) -> Sample:
    """One greedy streamed chat completion, timed.

    Raises:
        TwinspeedError: another variant answered, or the answer ended without usage or without a token.
    """
    wanted = f"{model}:{variant}"
    usage: CompletionUsage | None = None
    first_at: float | None = None
    text = ""
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []
    started = time.perf_counter()
    stream = client.chat.completions.create(
        model=wanted,
        messages=[{"role": "user", "content": prompt.prompt}],
        temperature=0,
        max_tokens=prompt.max_tokens,
        stream=True,
        stream_options={"include_usage": True},
        # A salt of its own keeps a repetition from finding its prompt in the engine's prefix cache.
        extra_body={"return_token_ids": True, "cache_salt": f"{prompt.id}-{round_number}-{started}"},
    )
    with stream:
        for chunk in stream:
            if chunk.model != wanted:
                raise TwinspeedError(f"asked for {wanted}, but {chunk.model} answered")
            usage = chunk.usage or usage
            prompt_token_ids = (chunk.model_extra or {}).get("prompt_token_ids") or prompt_token_ids
            for choice in chunk.choices:
                token_ids += (choice.model_extra or {}).get("token_ids") or []
                if choice.delta.content:
                    first_at = first_at or time.perf_counter()
                    text += choice.delta.content
    ended = time.perf_counter()
    if usage is None or usage.completion_tokens < 1:
        missing = "usage" if usage is None else "a token"
        raise TwinspeedError(f"{wanted} ended its answer to {prompt.id!r} without {missing}")
    return Sample(
        workload=workload,
        variant=variant,
        prompt_id=prompt.id,
        round=round_number,
        output_tokens=usage.completion_tokens,
        ttft_s=(first_at or ended) - started,
        e2e_s=ended - started,
        prompt_token_ids=tuple(prompt_token_ids),
        token_ids=tuple(token_ids),
        text=text,
    )
