"""Traces of requests: one JSON object a line, as they were recorded, or made up."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.config import DEFAULT_VARIANT
from twinspeed.errors import InputError

_CONTINUES = 0.6
_SESSION_TURNS = 8


class TraceRecord(BaseModel):
    """One request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arrival_s: float = Field(ge=0, description="seconds since the trace began")
    prompt_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    task_kind: str = "chat"
    session: str | None = None
    slo_ttft_s: float | None = Field(default=None, gt=0)
    slo_tpot_s: float | None = Field(default=None, gt=0)
    quality: Mapping[str, float] = Field(
        default_factory=dict, description="how good each variant's answer was, 0 to 1, where that is known"
    )

    def loss(self, variant: str) -> float | None:
        """How much worse the variant's answer was than `standard`'s; None where it is not known."""
        standard, own = self.quality.get(DEFAULT_VARIANT), self.quality.get(variant)
        return None if standard is None or own is None else standard - own


def read_trace(path: Path) -> list[TraceRecord]:
    """The requests in a JSONL file, in the order of their arrival.

    Raises:
        InputError: it cannot be read, is empty, or a line is no record; names the line and the field.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    records = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(TraceRecord.model_validate_json(line))
            except ValidationError as error:
                first = error.errors()[0]
                field = ".".join(map(str, first["loc"])) or "(whole line)"
                raise InputError(f"{path}:{number}: {field}: {first['msg']}") from None
    if not records:
        raise InputError(f"{path}: no requests in it")
    return sorted(records, key=lambda record: record.arrival_s)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What made-up requests are like. Token counts are medians of log-normal distributions, σ = 0.7."""

    requests_per_s: float = 2.0
    """Poisson arrivals."""
    prompt_tokens: int = 200
    """New in each turn; a later turn's prompt holds the earlier turns too."""
    output_tokens: int = 120
    task_kinds: Sequence[str] = ("chat", "code", "edit")
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


def generate_trace(seed: int, n: int, traffic: Traffic = Traffic()) -> list[TraceRecord]:
    """`n` made-up requests, the same for the same seed. Most continue one of a few conversations."""
    draw = random.Random(seed)
    now = 0.0
    conversations: list[tuple[str, str, int, int]] = []
    records = []
    for number in range(n):
        now += draw.expovariate(traffic.requests_per_s)
        kind, session, history, turn = draw.choice(traffic.task_kinds), f"s{number}", 0, 0
        if conversations and draw.random() < _CONTINUES:
            kind, session, history, turn = conversations.pop(draw.randrange(len(conversations)))
        prompt = history + _length(draw, traffic.prompt_tokens)
        output = _length(draw, traffic.output_tokens)
        if turn + 1 < _SESSION_TURNS:
            conversations.append((kind, session, prompt + output, turn + 1))
        records.append(
            TraceRecord(
                arrival_s=now,
                prompt_tokens=prompt,
                output_tokens=output,
                task_kind=kind,
                session=session,
                slo_ttft_s=traffic.slo_ttft_s,
                slo_tpot_s=traffic.slo_tpot_s,
            )
        )
    return records


def _length(draw: random.Random, median: int) -> int:
    return max(1, round(draw.lognormvariate(math.log(median), 0.7)))
