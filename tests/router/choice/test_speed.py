"""Predictions from a release's matrix, and how they learn."""

import pytest

from router.choice import Demand, Model
from router.choice.evidence import machine
from router.choice.speed import GROWTH, PRIOR_TPOT_S, Matrix, Speed
from router.record import Usage
from tests.router.choice.fleets import chosen, measurement, release, replicas, settings, speeds, variant

pytestmark = pytest.mark.unit


def tpot(speed: Speed, batch: int, kind: str = "chat", now: float = 0.0) -> float:
    rates = speed.rates(kind, now)
    return rates.output_s(batch) * batch


def test_measured_batches_are_as_measured_and_others_lie_between() -> None:
    speed = Speed(Matrix(speeds(100.0, {1: 20.0, 16: 80.0})), 64)
    assert tpot(speed, 1) == pytest.approx(0.020)
    assert tpot(speed, 16) == pytest.approx(0.080)
    # Half of the way from 1 to 16 by logarithm, hence half of the way from 20 to 80.
    assert tpot(speed, 4) == pytest.approx(0.040)


def test_beyond_the_matrix_the_last_line_goes_on_but_not_beyond_proportional() -> None:
    gentle = Speed(Matrix(speeds(100.0, {1: 20.0, 16: 80.0})), 64)
    assert tpot(gentle, 64) == pytest.approx(0.160)
    steep = Speed(Matrix(speeds(100.0, {1: 10.0, 4: 160.0})), 64)
    assert tpot(steep, 16) == pytest.approx(0.640)


def test_one_measured_batch_is_enough() -> None:
    speed = Speed(Matrix(speeds(100.0, {1: 20.0})), 64)
    assert tpot(speed, 8) == pytest.approx(0.020 * 8**GROWTH)


def test_a_task_kind_has_its_own_speed_and_an_unknown_one_the_mean() -> None:
    speed = Speed(Matrix(speeds(100.0, {1: 10.0}, "chat") + speeds(100.0, {1: 40.0}, "edit")), 64)
    assert tpot(speed, 1, "edit") == pytest.approx(0.040)
    assert tpot(speed, 1, "poetry") == pytest.approx(0.020)


def test_longer_prompts_take_longer() -> None:
    known = release(standard=variant(speed=speeds(100.0, {1: 20.0}), context=100_000), fast=variant())
    model = Model(settings(), known, replicas("standard"))
    assert chosen(model, Demand(256)).predicted_ttft_s == pytest.approx(0.100)
    assert chosen(model, Demand(2560)).predicted_ttft_s == pytest.approx(0.020 + 0.800)


def test_a_request_beyond_the_engines_batch_waits_for_those_before_it() -> None:
    known = release(standard=variant(speed=speeds(100.0, {1: 20.0, 4: 20.0}), max_num_seqs=4), fast=variant())
    busy = replicas("standard", in_flight=5)
    decision = chosen(Model(settings(), known, busy), Demand(256, max_tokens=100))
    assert decision.predicted_tpot_s == pytest.approx(0.020)
    # Two of them before it, and four places free up every 100 × 20 ms.
    first_token = known.variants["standard"].evidence.speed[0].value / 1000 * 4**GROWTH
    assert decision.predicted_ttft_s == pytest.approx(first_token + 2 * 100 * 0.020 / 4)


def test_without_evidence_one_observation_replaces_the_guess() -> None:
    speed = Speed(Matrix(), 64)
    assert tpot(speed, 1) == pytest.approx(PRIOR_TPOT_S)
    speed.observe("chat", 1, 256, None, 0.5, 0.0)
    assert tpot(speed, 1) == pytest.approx(0.5)
    # There is no evidence to go back to.
    assert tpot(speed, 1, now=1e6) == pytest.approx(0.5)


def test_observations_correct_the_evidence_at_every_batch() -> None:
    speed = Speed(Matrix(speeds(100.0, {1: 20.0, 16: 80.0})), 64)
    for number in range(100):
        speed.observe("chat", 1, 256, 0.200, 0.060, number / 100)
    assert tpot(speed, 16, now=1.0) == pytest.approx(0.240, rel=0.01)
    assert speed.rates("chat", 1.0).ttft_factor == pytest.approx(2.0, rel=0.01)


def test_predictions_get_better_with_observations() -> None:
    known = release(standard=variant(speed=speeds(100.0, {1: 20.0})), fast=variant())
    model = Model(settings(), known, replicas("standard"))
    errors = []
    for second in range(20):
        decision = chosen(model, Demand(300), float(second))
        errors.append(abs(decision.predicted_ttft_s - 0.5) + abs(decision.predicted_tpot_s - 0.1))
        model.observe(decision, Usage(300, 50), ttft_s=0.5, tpot_s=0.1, now=float(second))
    assert errors[-1] < 0.1 * errors[0]
    assert errors == sorted(errors, reverse=True)


def test_what_was_slow_long_ago_is_believed_to_be_as_measured_again() -> None:
    speed = Speed(Matrix(speeds(100.0, {1: 20.0})), 64)
    for _ in range(100):
        speed.observe("chat", 1, 256, None, 0.200, 0.0)
    assert tpot(speed, 1, now=1.0) > 0.190
    assert tpot(speed, 1, now=36_000.0) == pytest.approx(0.020, rel=0.01)


def test_cached_prompt_tokens_do_not_make_the_engine_look_quick() -> None:
    known = release(standard=variant(speed=speeds(100.0, {1: 20.0})), fast=variant())
    model = Model(settings(), known, replicas("standard"))
    before = chosen(model, Demand(2560)).predicted_ttft_s
    # All but 256 tokens were cached, and those took what they were expected to.
    model.observe(chosen(model, Demand(2560)), Usage(2560, 5, 2304), ttft_s=0.100, tpot_s=None, now=0.0)
    assert chosen(model, Demand(2560)).predicted_ttft_s == pytest.approx(before)


def test_the_time_in_the_engines_queue_does_not_count_as_its_speed() -> None:
    speed = Speed(Matrix(speeds(100.0, {1: 20.0})), 4)
    speed.observe("chat", 9, 256, 30.0, None, 0.0)
    assert speed.rates("chat", 0.0).ttft_factor == 1.0


def test_only_the_machine_that_all_were_measured_on_counts() -> None:
    both, one = "GPU both", "GPU one"
    standard = variant(
        speed=(measurement("tpot_ms", 20.0, machine=both), measurement("tpot_ms", 2.0, machine=one, day=9))
    )
    known = release(standard=standard, fast=variant(speed=(measurement("tpot_ms", 10.0, machine=both),)))
    assert machine(known) == both
    model = Model(settings(), known, replicas("standard"))
    assert chosen(model, Demand(10)).predicted_tpot_s == pytest.approx(0.020)


def test_the_length_of_answers_is_learned_and_capped() -> None:
    model = Model(settings(), None, replicas("standard"))
    assert model.expected_usage(Demand(10)) == Usage(10, 256)
    decision = chosen(model, Demand(10))
    for _ in range(200):
        model.observe(decision, Usage(10, 40), ttft_s=None, tpot_s=None, now=0.0)
    assert model.expected_usage(Demand(10)) == Usage(10, 40)
    assert model.expected_usage(Demand(10, max_tokens=7)) == Usage(10, 7)
