"""The comparison of two variants as data (`report.json`), as a page (`report.html`) and as a table."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import jinja2
from pydantic import BaseModel, ConfigDict
from rich.table import Table

from evals import statistics
from evals.agreement import Scored
from evals.speed import Sample
from twinspeed import files
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
    "intervals": "95 %, bootstrap over prompts",
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
    try:
        return Report.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no report of `twinspeed release measure`: {str(error).splitlines()[0]}") from None


def write(report: Report, folder: Path) -> None:
    """Write `report.json` and `report.html` into `folder`."""
    files.write_atomically(folder / "report.json", report.model_dump_json(indent=2) + "\n")
    files.write_atomically(folder / "report.html", html(report))


def html(report: Report) -> str:
    return _templates().get_template("report.html").render(report=report, chart=svg(report))


def svg(report: Report) -> str:
    """Grouped bars of output tokens/s, as one SVG element."""
    return _templates().get_template("chart.svg").render(report=report, top=_axis_top(report))


def markdown(report: Report) -> str:
    """The table as Markdown, with the machine below it."""
    header = (
        "| workload | variant | output tokens/s | TTFT ms | TPOT ms | speed ratio | $ per 10⁶ output tokens "
        "| top-1 agreement | mean log-prob. |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    rows = "".join(f"| {' | '.join(row)} |\n" for row in _rows(report))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return (
        f"{header}{rows}\nMedians [95 % interval]; one stream; {report.rounds} rounds of "
        f"{len(report.workloads)} workloads; {report.machine}, at ${report.usd_per_hour:.2f} per hour; {versions}; "
        f"{report.date:%Y-%m-%d}.\n"
    )


def table(report: Report) -> Table:
    """The table for a terminal."""
    shown = Table(title=f"{report.release}: standard and fast, one stream, {report.machine}", title_justify="left")
    for column in ("workload", "variant"):
        shown.add_column(column)
    for column in ("output tok/s", "TTFT ms", "TPOT ms", "speed ratio", "$/10⁶ out", "top-1", "mean log-prob."):
        shown.add_column(column, justify="right")
    for row in _rows(report):
        shown.add_row(*(cell.replace("**", "") for cell in row), end_section=row[1] == "fast")
    return shown


def _rows(report: Report) -> list[list[str]]:
    rows = []
    for name, figures in report.workloads.items():
        for variant_name, variant in (("standard", figures.standard), ("fast", figures.fast)):
            ratio = f"**{_with_interval(figures.speed_ratio, 2)}**" if variant_name == "fast" else "1"
            rows.append(
                [
                    name,
                    variant_name,
                    _with_interval(variant.output_tokens_per_s, 1),
                    f"{variant.ttft_ms.value:.0f}",
                    f"{variant.tpot_ms.value:.1f}",
                    ratio,
                    f"{variant.cost_usd_per_million_output_tokens.value:.2f}",
                    f"{variant.top1_agreement.value:.3f}",
                    f"{variant.mean_log_probability.value:.3f}",
                ]
            )
    return rows


def _with_interval(figure: Figure, digits: int) -> str:
    low, high = figure.interval
    return f"{figure.value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _axis_top(report: Report) -> float:
    return max(
        variant.output_tokens_per_s.interval[1]
        for figures in report.workloads.values()
        for variant in (figures.standard, figures.fast)
    )


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
        top1_agreement=_figure(
            statistics.mean([[float(hit) for hit in answer.top1] for answer in answers], seed=seed)
        ),
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


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("evals", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
