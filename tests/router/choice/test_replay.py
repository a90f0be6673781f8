"""Traces, the simulated fleet, and the comparison."""

import json
from pathlib import Path

import pytest

from router.choice.replay import Outcome, replay
from router.choice.simulation import simulate
from router.choice.trace import TraceRecord, Traffic, generate_trace, read_trace
from router.config import ModelSettings
from tests.router.choice.fleets import measurement, priced, release, settings, speeds, variant
from twinspeed.errors import InputError
from twinspeed.release import Release

pytestmark = pytest.mark.unit

ONE_EACH = {"standard": 1, "fast": 1}
SLOW = speeds(100.0, {1: 20.0, 16: 40.0})


def release_of(fast_tpot: dict[int, float], **fast: object) -> Release:
    return release(
        standard=variant(speed=SLOW),
        fast=variant(speed=speeds(50.0, fast_tpot), **fast),  # type: ignore[arg-type]
    )


LOSSLESS = release_of({1: 10.0, 16: 20.0}, lossless_to="standard")


def one(**fields: object) -> TraceRecord:
    return TraceRecord.model_validate({"arrival_s": 0.0, "prompt_tokens": 256, "output_tokens": 11} | fields)


def test_a_lone_request_takes_and_costs_what_the_matrix_says() -> None:
    [served] = simulate([one()], settings(), LOSSLESS, {"standard": 1})
    assert served.ttft_s == pytest.approx(0.100)
    assert served.tpot_s == pytest.approx(0.020)
    assert served.e2e_s == pytest.approx(0.100 + 10 * 0.020)
    # The whole machine at a million nano-USD a second.
    assert served.cost == pytest.approx(300_000)


def test_requests_together_share_the_machine_and_slow_each_other() -> None:
    trace = [one(output_tokens=500) for _ in range(16)]
    served = simulate(trace, settings(), LOSSLESS, {"standard": 1})
    for each in served:
        assert each.tpot_s == pytest.approx(0.040, rel=0.05)
    elapsed = max(each.e2e_s for each in served)
    assert sum(each.cost for each in served) == pytest.approx(1e6 * elapsed)


def test_an_engine_works_on_so_many_and_the_others_wait() -> None:
    known = release(standard=variant(speed=speeds(100.0, {1: 20.0, 2: 20.0}), max_num_seqs=2), fast=variant())
    served = simulate([one() for _ in range(4)], settings(), known, {"standard": 1})
    early, late = served[:2], served[2:]
    assert max(each.ttft_s for each in early) < 0.2
    assert min(each.ttft_s for each in late) > max(each.e2e_s for each in early)


def test_the_router_holds_back_what_no_replica_takes() -> None:
    configured = settings(standard=priced("standard", max_in_flight=1))
    served = simulate([one() for _ in range(3)], configured, LOSSLESS, {"standard": 1})
    assert [each.e2e_s for each in served] == pytest.approx([0.3, 0.6, 0.9])


def test_a_sessions_next_turn_finds_its_prefix() -> None:
    turns = [one(session="a", prompt_tokens=1000), one(session="a", prompt_tokens=1300, arrival_s=60.0)]
    first, second = simulate(turns, settings(), LOSSLESS, {"standard": 2})
    assert second.ttft_s < 0.5 * first.ttft_s


def test_deadlines_and_known_answers_are_read_from_the_trace() -> None:
    trace = [
        one(slo_ttft_s=0.11, quality={"standard": 0.9}),
        one(slo_tpot_s=0.019, arrival_s=9.0),
        one(arrival_s=19.0, quality={"standard": 0.9, "fast": 0.6}),
    ]
    served = simulate(trace, settings(), release_of({1: 10.0}), ONE_EACH, lambda n: "fast" if n == 2 else None)
    assert [each.in_time for each in served] == [True, False, None]
    assert [each.loss for each in served] == [0.0, 0.0, pytest.approx(0.3)]


def test_the_policy_is_no_dearer_than_standard_where_fast_is_good_enough() -> None:
    trace = generate_trace(3, 150, Traffic(requests_per_s=0.1))
    result = replay(trace, settings(), LOSSLESS, ONE_EACH, seed=3)
    assert result.requests == 150
    assert result.policy.spend_usd < 0.7 * result.standard.spend_usd
    ratio = result.policy.cost_ratio
    assert ratio is not None
    assert 0.0 < ratio.low < ratio.value < ratio.high < 1.0
    assert result.policy.quality_loss is not None
    assert result.policy.quality_loss.value == 0.0
    assert result.standard.shares == {"standard": 1.0}
    assert result.alternative.shares == {"fast": 1.0}


def by_kind() -> tuple[ModelSettings, Release]:
    """Fast is fine for code, and bad for chat."""
    quality = (
        measurement("quality_loss", 0.0, high=0.005, workload="code"),
        measurement("quality_loss", 0.0, high=0.5, workload="chat"),
    )
    return settings(0.01), release_of({1: 10.0, 16: 20.0}, quality=quality)


def test_at_the_same_spend_chance_loses_more_quality_than_the_policy() -> None:
    trace = generate_trace(6, 300, Traffic(requests_per_s=0.1, task_kinds=("chat", "code"), slo_tpot_s=0.022))
    result = replay(trace, *by_kind(), ONE_EACH, seed=6)
    assert 0.2 < result.policy.shares["fast"] < 0.8
    assert result.random_mix.spend_usd == pytest.approx(result.policy.spend_usd, rel=0.005)
    assert 0.0 < result.mix_share < 1.0
    policy, chance = result.policy.quality_loss, result.random_mix.quality_loss
    assert policy is not None
    assert chance is not None
    assert policy.high <= 0.01 < chance.low
    for outcome in (result.policy, result.standard, result.alternative, result.random_mix):
        check_intervals(outcome)


def check_intervals(outcome: Outcome) -> None:
    for estimate in (outcome.cost_usd, outcome.cost_ratio, outcome.quality_loss, outcome.slo_attainment):
        assert estimate is not None
        assert estimate.low <= estimate.value <= estimate.high


def test_a_replay_is_the_same_for_the_same_seed() -> None:
    trace = generate_trace(5, 60, Traffic(task_kinds=("chat", "code")))
    assert replay(trace, *by_kind(), ONE_EACH, seed=1) == replay(trace, *by_kind(), ONE_EACH, seed=1)


def test_an_unknown_loss_is_not_made_up() -> None:
    result = replay(generate_trace(1, 20), settings(), release_of({1: 10.0}), ONE_EACH)
    assert result.alternative.quality_loss is None
    assert result.policy.quality_loss is not None
    assert result.policy.slo_attainment is None


def test_a_replay_needs_requests_and_both_variants() -> None:
    with pytest.raises(InputError, match="no requests"):
        replay([], settings(), LOSSLESS, ONE_EACH)
    with pytest.raises(InputError, match="fast has no replica"):
        replay([one()], settings(), LOSSLESS, {"standard": 1})


def test_made_up_traces_are_the_same_for_the_same_seed_and_continue_conversations() -> None:
    trace = generate_trace(1, 300)
    assert trace == generate_trace(1, 300)
    assert trace != generate_trace(2, 300)
    assert [record.arrival_s for record in trace] == sorted(record.arrival_s for record in trace)
    last: dict[str | None, TraceRecord] = {}
    for record in trace:
        before = last.get(record.session)
        if before:
            assert record.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert record.task_kind == before.task_kind
        last[record.session] = record
    assert 50 < len(last) < 200


def test_a_trace_file_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    records = [one(arrival_s=2.0), one(arrival_s=1.0, session="a", quality={"fast": 0.5})]
    path.write_text("\n".join(record.model_dump_json() for record in records) + "\n\n")
    assert read_trace(path) == records[::-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (json.dumps({"arrival_s": 1.0, "prompt_tokens": 0, "output_tokens": 1}), "trace.jsonl:2: prompt_tokens"),
        (json.dumps({"arrival_s": 1.0, "prompt_tokens": 1}), "trace.jsonl:2: output_tokens"),
        ("nonsense", "trace.jsonl:2: .whole line."),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{one().model_dump_json()}\n{line}\n")
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_no_file_and_no_requests_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="no requests"):
        read_trace(tmp_path / "empty.jsonl")
