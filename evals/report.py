"""The comparison of two variants as data: what `report.json` holds, and how its figures come from samples."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from evals import statistics
from evals.agreement import Scored
from evals.speed import Sample
from twinspeed.errors import InputError

FORMULAS = {
    "output tokens/s": "N / E2E, per request; N = completion tokens of the response's usage",
    "TTFT": "time from sending the request to its first text",
    "TPOT": "(E2E - TTFT) / (N - 1)",
    "speed ratio": "median over prompts and rounds of fast's output tokens/s ÷ standard's on the same prompt and round",
    "cost": "hardware $/h ÷ (output tokens/s × 3600) × 10^6, one stream at a time",
    "top-1 agreement": "share of the tokens of standard's greedy answers that are the variant's most probable token, "
    "given the same text before them",
    "mean log-probability": "of the same tokens under the variant, natural logarithm",
    "intervals": "95 %, bootstrap over prompts: all observations of a prompt are drawn together",
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Model):
    """A figure with its 95 % interval and the number of observations behind it."""

    value: float
    interval: tuple[float, float]
    n: int


class VariantFigures(_Model):
    """One variant on one workload."""

    output_tokens_per_s: Figure
    ttft_ms: Figure
    tpot_ms: Figure
    cost_usd_per_million_output_tokens: Figure
    top1_agreement: Figure
    mean_log_probability: Figure


class WorkloadFigures(_Model):
    """Both variants on one workload."""

    standard: VariantFigures
    fast: VariantFigures
    speed_ratio: Figure


class Report(_Model):
    """The whole of `report.json`."""

    command: str
    date: datetime
    git_sha: str
    machine: str
    versions: dict[str, str]
    seed: int
    rounds: int
    release: str
    usd_per_hour: float
    concurrency: int
    formulas: dict[str, str]
    workloads: dict[str, WorkloadFigures]


def workload_figures(
    samples: Sequence[Sample], scored: Sequence[Scored], usd_per_hour: float, seed: int
) -> WorkloadFigures:
    """Figures of one workload from its samples and scored answers of `standard` and `fast`."""
    return WorkloadFigures(
        standard=_variant_figures("standard", samples, scored, usd_per_hour, seed),
        fast=_variant_figures("fast", samples, scored, usd_per_hour, seed),
        speed_ratio=_figure(statistics.median(_ratios(samples), seed=seed)),
    )


def load(path: Path) -> Report:
    """Read and validate a `report.json`.

    Raises:
        InputError: missing or invalid; names the first field at fault and the reason.
    """
    try:
        return Report.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"no report at {path} ({error.strerror}); `twinspeed release measure` writes one") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise InputError(f"{path}: {field}: {first['msg']}") from None


def _variant_figures(
    name: str, samples: Sequence[Sample], scored: Sequence[Scored], usd_per_hour: float, seed: int
) -> VariantFigures:
    by_prompt: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.variant == name:
            by_prompt.setdefault(sample.prompt_id, []).append(sample)
    groups = list(by_prompt.values())
    answers = [answer for answer in scored if answer.variant == name]

    def median(values: list[list[float]]) -> Figure:
        return _figure(statistics.median(values, seed=seed))

    return VariantFigures(
        output_tokens_per_s=median([[sample.tokens_per_s for sample in group] for group in groups]),
        ttft_ms=median([[sample.ttft_s * 1e3 for sample in group] for group in groups]),
        tpot_ms=median([[sample.tpot_s * 1e3 for sample in group] for group in groups]),
        cost_usd_per_million_output_tokens=median(
            [[usd_per_hour / (sample.tokens_per_s * 3600) * 1e6 for sample in group] for group in groups]
        ),
        top1_agreement=_figure(statistics.mean([[float(hit) for hit in answer.top1] for answer in answers], seed=seed)),
        mean_log_probability=_figure(
            statistics.mean([list(answer.log_probabilities) for answer in answers], seed=seed)
        ),
    )


def _ratios(samples: Sequence[Sample]) -> list[list[float]]:
    """fast ÷ standard per prompt and round, grouped by prompt."""
    speeds = {(sample.prompt_id, sample.round, sample.variant): sample.tokens_per_s for sample in samples}
    by_prompt: dict[str, list[float]] = {}
    for prompt_id, number, variant in speeds:
        if variant == "fast":
            ratio = speeds[prompt_id, number, "fast"] / speeds[prompt_id, number, "standard"]
            by_prompt.setdefault(prompt_id, []).append(ratio)
    return list(by_prompt.values())


def _figure(estimate: statistics.Estimate) -> Figure:
    return Figure(value=estimate.value, interval=(estimate.low, estimate.high), n=estimate.n)
