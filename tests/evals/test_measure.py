"""From a served release to its report and its evidence, with mock engines behind the real router."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evals import report as reports, workloads
from evals.measure import SEED, Settings, measure_release
from twinspeed import hardware, release as releases
from twinspeed.errors import InputError, TwinspeedError
from twinspeed.release import (
    Capabilities,
    EngineSettings,
    Evidence,
    Interval,
    Measurement,
    NgramSpeculation,
    Parent,
    Release,
    Variant,
    Weights,
)

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MEASURES = {
    "speed": {"output_tokens_per_s", "ttft_ms", "tpot_ms"},
    "cost": {"usd_per_million_output_tokens"},
    "quality": {"top1_agreement", "mean_log_probability"},
}


def old(measure: str, *, workload: str = "chat", machine: str | None = None, concurrency: int = 1) -> Measurement:
    return Measurement(
        measure=measure,
        value=-123.0,
        unit="x",
        interval=Interval(low=-124, high=-122),
        n=1,
        workload=workload,
        concurrency=concurrency,
        machine=machine or hardware.detect().describe(),
        versions={},
        command="an earlier one",
        date=NOW,
    )


def variant(evidence: Evidence | None = None, *, speculation: NgramSpeculation | None = None) -> Variant:
    return Variant(
        weights=Weights(path="w", format="bf16", recipe="copy", bytes=1, files={"config.json": "0" * 64}),
        speculation=speculation,
        lossless_to=None,
        engine=EngineSettings(max_model_len=512),
        capabilities=Capabilities(context=512),
        evidence=evidence or Evidence(),
    )


def save(folder: Path, variants: dict[str, Variant]) -> Path:
    release = Release(
        name="tiny",
        created_at=NOW,
        tools={"llmcompressor": "1"},
        parent=Parent(
            uri="file:///checkpoint",
            tree_sha256="0" * 64,
            architecture="LlamaForCausalLM",
            context_length=512,
            vocab_size=100,
            tokenizer_sha256="0" * 64,
            chat_template_sha256=None,
            generation_config_sha256="0" * 64,
            eos_token_ids=(2,),
        ),
        variants=variants,
    )
    releases.save(release, folder)
    return folder


def settings(url: str) -> Settings:
    return Settings(url=url, rounds=1, usd_per_hour=0.36, command="twinspeed release measure")


def test_a_served_release_is_measured(tmp_path: Path, router_url: str) -> None:
    earlier = Evidence(
        speed=(
            old("output_tokens_per_s"),
            old("output_tokens_per_s", concurrency=8),
            old("output_tokens_per_s", machine="another machine"),
            old("output_tokens_per_s", workload="summaries"),
        ),
        conformance=(old("passed"),),
    )
    folder = save(
        tmp_path / "release",
        {
            "standard": variant(earlier),
            "fast": variant(
                speculation=NgramSpeculation(num_speculative_tokens=4, prompt_lookup_min=1, prompt_lookup_max=3)
            ),
        },
    )
    report = measure_release(folder, tmp_path / "out", settings(router_url))

    assert reports.load(tmp_path / "out" / "report.json") == report
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    assert (report.release, report.rounds, report.seed, report.concurrency) == ("tiny", 1, SEED, 1)
    assert list(report.workloads) == ["chat", "edit", "code"]
    for name, figures in report.workloads.items():
        assert figures.speed_ratio.value > 0
        for both in (figures.standard, figures.fast):
            assert both.output_tokens_per_s.n == len(workloads.load(name).prompts)
            # The mock engine finds every token the most probable one, with a log-probability of -0.25.
            assert both.top1_agreement.value == 1
            assert both.mean_log_probability.value == pytest.approx(-0.25)
            assert both.top1_agreement.n == sum(prompt.max_tokens for prompt in workloads.load(name).prompts)

    measured = releases.load(folder).variants
    for name in ("standard", "fast"):
        for kind, measures in MEASURES.items():
            new = [entry for entry in getattr(measured[name].evidence, kind) if entry.value != -123]
            assert sorted((entry.workload, entry.measure) for entry in new) == sorted(
                (workload, measure) for workload in report.workloads for measure in measures
            )
            assert all(entry.command == "twinspeed release measure" and entry.interval for entry in new)
    kept = measured["standard"].evidence
    assert [entry for entry in kept.speed if entry.value == -123] == list(earlier.speed[1:])
    assert kept.conformance == earlier.conformance
    assert measured["fast"].speculation is not None

    measure_release(folder, tmp_path / "out", settings(router_url))
    again = releases.load(folder).variants["standard"].evidence
    assert len(again.speed) == len(kept.speed)
    assert len(again.quality) == len(kept.quality)


def test_a_release_without_a_fast_variant_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "release", {"standard": variant()})
    with pytest.raises(InputError, match="no variant 'fast'"):
        measure_release(folder, tmp_path / "out", settings("http://127.0.0.1:1"))


def test_a_machine_without_a_known_price_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "release", {"standard": variant(), "fast": variant()})
    monkeypatch.setattr(
        hardware,
        "detect",
        lambda: hardware.Hardware("Example CPU", 8, 2**35, (), (hardware.Gpu("Example GPU", 2**36),)),
    )
    with pytest.raises(InputError, match=r"Example GPU.*--usd-per-hour"):
        measure_release(folder, tmp_path / "out", replace(settings("http://127.0.0.1:1"), usd_per_hour=None))


def test_a_router_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = save(tmp_path / "release", {"standard": variant(), "fast": variant()})
    before = (folder / "release.json").read_bytes()
    with pytest.raises(TwinspeedError, match=r"measuring through http://127\.0\.0\.1:1 failed"):
        measure_release(folder, tmp_path / "out", settings("http://127.0.0.1:1"))
    assert not (tmp_path / "out").exists()
    assert (folder / "release.json").read_bytes() == before
