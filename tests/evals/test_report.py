"""How figures come from samples, and that a broken report is refused with the field's name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from evals import report as reports
from evals.agreement import Scored
from evals.report import Report
from evals.speed import Sample
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit


def scored(variant: str, prompt_id: str, hits: tuple[bool, ...], log_probability: float) -> Scored:
    return Scored(variant, "chat", prompt_id, tuple(log_probability for _ in hits), hits)


@pytest.fixture
def answers() -> list[Scored]:
    return [
        scored("standard", "a", (True, True), -0.1),
        scored("standard", "b", (True, True), -0.1),
        scored("fast", "a", (True, True, True), -0.2),
        scored("fast", "b", (False,), -0.6),
    ]


def test_ratios_are_paired_by_prompt_and_round(make_sample: Callable[..., Sample], answers: list[Scored]) -> None:
    speeds = {("a", 0): (10.0, 20.0), ("a", 1): (100.0, 200.0), ("b", 0): (1000.0, 3000.0), ("b", 1): (1.0, 2.0)}
    samples = [
        make_sample(speed, variant=variant, prompt_id=prompt_id, round=number)
        for (prompt_id, number), pair in speeds.items()
        # The order in which they were asked does not matter.
        for variant, speed in list(zip(("standard", "fast"), pair, strict=True))[:: -1 if number else 1]
    ]
    figures = reports.workload_figures(samples, answers, usd_per_hour=0.1, seed=1)
    # The ratio of the medians would be 110 / 55.
    assert figures.speed_ratio.value == pytest.approx(2.0)
    assert figures.speed_ratio.n == 4
    assert figures.speed_ratio.interval == pytest.approx((2.0, 2.5))
    assert figures.standard.output_tokens_per_s.value == pytest.approx(55.0)
    assert figures.fast.output_tokens_per_s.value == pytest.approx(110.0)


def test_the_formulas(make_sample: Callable[..., Sample], answers: list[Scored]) -> None:
    samples = [
        make_sample(variant=variant, prompt_id=prompt_id, output_tokens=21, ttft_s=0.5, e2e_s=e2e_s)
        for variant, e2e_s in (("standard", 4.5), ("fast", 2.5))
        for prompt_id in ("a", "b")
    ]
    figures = reports.workload_figures(samples, answers, usd_per_hour=0.36, seed=1)
    assert figures.fast.output_tokens_per_s.value == pytest.approx(21 / 2.5)
    assert figures.fast.ttft_ms.value == pytest.approx(500)
    assert figures.fast.tpot_ms.value == pytest.approx(100)
    assert figures.standard.tpot_ms.value == pytest.approx(200)
    # 0.36 USD an hour are 0.0001 a second.
    assert figures.fast.cost_usd_per_million_output_tokens.value == pytest.approx(0.0001 * 2.5 / 21 * 1e6)
    assert figures.speed_ratio.value == pytest.approx(4.5 / 2.5)
    # Means over tokens, not over answers.
    assert figures.fast.top1_agreement.value == pytest.approx(3 / 4)
    assert figures.fast.top1_agreement.n == 4
    assert figures.fast.mean_log_probability.value == pytest.approx((3 * -0.2 - 0.6) / 4)
    assert figures.standard.top1_agreement.value == 1


def test_a_report_is_read_as_it_was_written(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(report.model_dump_json())
    assert reports.load(path) == report


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", r"\(whole file\): Invalid JSON"), ('{"rounds": "many"}', "command: Field required"), (None, "no report at")],
)
def test_a_broken_report_is_refused_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        reports.load(path)
    assert "\n" not in str(refused.value)
