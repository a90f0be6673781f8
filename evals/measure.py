"""Measures a served release: speed, cost and quality of *fast* beside *standard*, and writes down what was found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import openai

from evals import agreement, page, report as reports, speed, workloads
from evals.report import Figure, Report, VariantFigures
from twinspeed import files, hardware, provenance, release as releases
from twinspeed.console import step
from twinspeed.errors import InputError, TwinspeedError
from twinspeed.release import Interval, Measurement, Release

VARIANTS = ("standard", "fast")
SEED = 20261
_REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Settings:
    """How to measure."""

    url: str
    """Base URL of the router, without `/v1`."""
    rounds: int
    usd_per_hour: float | None
    command: str


def measure_release(folder: Path, out: Path, settings: Settings) -> Report:
    """Measure the release in `folder` through the router, write the report to `out`, and the evidence to the release.

    Raises:
        InputError: no price is known for this hardware.
        TwinspeedError: the endpoint failed or answered as another variant.
    """
    release = releases.load(folder)
    for name in VARIANTS:
        release.variant(name)
    machine = hardware.detect()
    usd_per_hour = settings.usd_per_hour if settings.usd_per_hour is not None else machine.usd_per_hour
    if usd_per_hour is None:
        raise InputError(f"no price is known for {machine.describe()}: give it with --usd-per-hour")
    loads = [workloads.load(name) for name in workloads.NAMES]
    try:
        with openai.OpenAI(
            base_url=f"{settings.url}/v1", api_key="none", max_retries=0, timeout=_REQUEST_TIMEOUT_S
        ) as client:
            with step("measuring speed: the same prompts through both, taking turns") as progress:
                samples = speed.measure(client, release.name, VARIANTS, loads, settings.rounds, progress)
            with step("measuring quality: standard's answers under both") as progress:
                scored = _score(client, release, samples, progress)
    except openai.OpenAIError as error:
        raise TwinspeedError(f"measuring through {settings.url} failed: {error}") from None
    report = Report(
        command=settings.command,
        date=datetime.now(UTC),
        git_sha=provenance.git_sha(),
        machine=machine.describe(),
        versions=provenance.versions(release),
        seed=SEED,
        rounds=settings.rounds,
        release=release.name,
        usd_per_hour=usd_per_hour,
        concurrency=1,
        formulas=reports.FORMULAS,
        workloads={
            load.name: reports.workload_figures(
                [sample for sample in samples if sample.workload == load.name],
                [answer for answer in scored if answer.workload == load.name],
                usd_per_hour,
                SEED,
            )
            for load in loads
        },
    )
    files.write_atomically(out / "report.json", report.model_dump_json(indent=2) + "\n")
    files.write_atomically(out / "report.html", page.html(report))
    releases.save(_with_evidence(release, report), folder)
    return report


def _score(
    client: openai.OpenAI,
    release: Release,
    samples: Sequence[speed.Sample],
    progress: Callable[[float, str], None],
) -> list[agreement.Scored]:
    answers = [sample for sample in samples if sample.variant == "standard" and sample.round == 0]
    scored = []
    for index, answer in enumerate(answers):
        for variant in VARIANTS:
            progress(index / len(answers), f"{answer.workload}, {answer.prompt_id}, {variant}")
            scored.append(agreement.score(client, release.name, variant, answer))
    return scored


def _with_evidence(release: Release, report: Report) -> Release:
    """The release with this report's figures in place of earlier ones of the same workloads and machine."""
    variants = dict(release.variants)
    for name in VARIANTS:
        evidence = variants[name].evidence
        added = {kind: tuple(_measurements(kind, name, report)) for kind in ("speed", "cost", "quality")}
        kept = {
            kind: tuple(
                old
                for old in getattr(evidence, kind)
                if (old.measure, old.workload, old.machine, old.concurrency)
                not in {(new.measure, new.workload, new.machine, new.concurrency) for new in added[kind]}
            )
            for kind in added
        }
        merged = evidence.model_copy(update={kind: kept[kind] + added[kind] for kind in added})
        variants[name] = variants[name].model_copy(update={"evidence": merged})
    return release.model_copy(update={"variants": variants})


def _measurements(kind: str, variant: str, report: Report) -> Iterator[Measurement]:
    for workload, both in report.workloads.items():
        figures: VariantFigures = getattr(both, variant)
        named: dict[str, tuple[str, Figure]] = {
            "speed": {
                "output_tokens_per_s": ("tokens/s", figures.output_tokens_per_s),
                "ttft_ms": ("ms", figures.ttft_ms),
                "tpot_ms": ("ms", figures.tpot_ms),
            },
            "cost": {"usd_per_million_output_tokens": ("USD", figures.cost_usd_per_million_output_tokens)},
            "quality": {
                "top1_agreement": ("share", figures.top1_agreement),
                "mean_log_probability": ("nat/token", figures.mean_log_probability),
            },
        }[kind]
        for measure, (unit, figure) in named.items():
            yield Measurement(
                measure=measure,
                value=figure.value,
                unit=unit,
                interval=Interval(low=figure.interval[0], high=figure.interval[1]),
                n=figure.n,
                workload=workload,
                concurrency=report.concurrency,
                machine=report.machine,
                versions=report.versions,
                command=report.command,
                date=report.date,
            )
