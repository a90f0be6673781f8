"""Which variant, and the reason that is given."""

import json

import pytest

from router.choice import BUSY, Demand, Model, Replica
from router.errors import ApiError
from tests.router.choice.fleets import NAME, chosen, measurement, priced, release, replicas, settings, speeds, variant
from twinspeed.release import Measurement

pytestmark = pytest.mark.unit

SLOW = speeds(100.0, {1: 20.0})
QUICK = speeds(50.0, {1: 10.0})


def loss(high: float, workload: str = "all") -> Measurement:
    return measurement("quality_loss", 0.0, high=high, workload=workload)


def fleet(*, max_quality_loss: float = 0.01, **fast: object) -> tuple[Model, Replica, Replica]:
    """A standard and a fast replica; fast is twice as quick and as dear, and as good as `fast` says."""
    known = release(standard=variant(speed=SLOW), fast=variant(speed=QUICK, **fast))  # type: ignore[arg-type]
    both = replicas("standard") + replicas("fast")
    return Model(settings(max_quality_loss), known, both), both[0], both[1]


def refusal(model: Model, demand: Demand) -> ApiError:
    with pytest.raises(ApiError) as caught:
        model.choose(demand, 0.0)
    return caught.value


def test_the_cheapest_variant_that_is_good_enough_serves() -> None:
    model, _, fast = fleet(quality=(loss(0.005),))
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.reason) == (fast, "cheapest_within_quality")
    assert decision.quality_loss == 0.005


def test_the_losss_upper_bound_counts() -> None:
    model, standard, _ = fleet(quality=(loss(0.011),))
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.reason) == (standard, "default")
    assert decision.quality_loss == 0.0


def test_a_loss_without_an_interval_counts_as_it_is() -> None:
    model, standard, _ = fleet(quality=(measurement("quality_loss", 0.02, workload="all"),))
    assert chosen(model, Demand(100)).replica is standard


def test_evidence_is_by_task_kind() -> None:
    model, standard, fast = fleet(quality=(loss(0.0, "code"), loss(0.5, "chat")))
    assert chosen(model, Demand(100, task_kind="code")).replica is fast
    assert chosen(model, Demand(100, task_kind="chat")).replica is standard
    assert chosen(model, Demand(100, task_kind="poetry")).replica is standard


def test_evidence_for_a_kind_outranks_that_for_all() -> None:
    model, standard, fast = fleet(quality=(loss(0.0, "all"), loss(0.5, "math")))
    assert chosen(model, Demand(100, task_kind="math")).replica is standard
    assert chosen(model, Demand(100, task_kind="poetry")).replica is fast


def test_of_several_measurements_the_worst_counts() -> None:
    model, standard, _ = fleet(quality=(loss(0.5, "chat"), loss(0.0, "chat")))
    assert chosen(model, Demand(100)).replica is standard


def test_other_figures_are_no_evidence_of_quality() -> None:
    figures = (measurement("top1_agreement", 0.0, workload="chat"), measurement("mean_log_probability", 0.0))
    model, standard, _ = fleet(quality=figures, max_quality_loss=1.0)
    assert chosen(model, Demand(100)).replica is standard


def test_without_evidence_and_prices_only_standard_serves() -> None:
    both = replicas("standard") + replicas("fast")
    model = Model(settings(usd_per_hour=None, max_quality_loss=1.0), None, both)
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.reason, decision.predicted_cost) == (both[0], "default", 0)
    both[0].ready = False
    error = refusal(model, Demand(100))
    assert error.status == 503
    assert f"{NAME}:fast" in json.loads(error.body)["error"]["message"]


def test_lossless_is_good_enough_always() -> None:
    model, _, fast = fleet(lossless_to="standard", max_quality_loss=0.0)
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.quality_loss) == (fast, 0.0)


def test_lossless_to_another_variant_is_as_good_as_that_one() -> None:
    known = release(
        standard=variant(speed=SLOW),
        int8=variant(speed=SLOW, quality=(loss(0.2),)),
        fast=variant(speed=QUICK, lossless_to="int8"),
    )
    fast = replicas("fast")
    for bound, expected in ((0.1, "standard"), (0.2, "fast")):
        model = Model(settings(bound, int8=priced("int8")), known, [*replicas("standard"), *fast])
        assert chosen(model, Demand(100)).replica.variant == expected


def test_the_settings_may_say_that_a_variant_is_lossless() -> None:
    both = replicas("standard") + replicas("fast")
    configured = settings(fast=priced("fast", 1.0, lossless_to="standard"))
    assert chosen(Model(configured, None, both), Demand(100)).replica is both[1]


def test_dearer_hardware_outweighs_speed() -> None:
    known = release(standard=variant(speed=SLOW), fast=variant(speed=QUICK, lossless_to="standard"))
    both = replicas("standard") + replicas("fast")
    assert chosen(Model(settings(fast=priced("fast", 7.0)), known, both), Demand(100)).replica is both[1]
    assert chosen(Model(settings(fast=priced("fast", 7.4)), known, both), Demand(100)).replica is both[0]


def test_lossless_speculation_that_stops_paying_at_high_batch_gives_way_to_standard() -> None:
    known = release(
        standard=variant(speed=speeds(50.0, {1: 20.0, 32: 40.0})),
        fast=variant(speed=speeds(50.0, {1: 10.0, 32: 80.0}), lossless_to="standard"),
    )
    both = replicas("standard") + replicas("fast")
    model = Model(settings(), known, both)
    seen = []
    for in_flight in range(33):
        both[1].in_flight = in_flight
        seen.append(chosen(model, Demand(10)).replica.variant)
    # The lines cross at batch 10: 20 × 2^(x/5) = 10 × 2^(3x/5) at x = 2.5, and 2^2.5 = 5.7.
    assert seen == ["fast"] * 5 + ["standard"] * 28


def test_a_variant_is_not_cheap_merely_because_it_is_busy() -> None:
    model, standard, fast = fleet(lossless_to="standard")
    standard.in_flight = 40
    assert chosen(model, Demand(100)).replica is fast


def test_without_a_price_for_each_the_hardwares_time_decides() -> None:
    known = release(standard=variant(speed=SLOW), fast=variant(speed=QUICK, lossless_to="standard"))
    both = replicas("standard") + replicas("fast")
    model = Model(settings(fast=priced("fast", 1000.0), standard=priced("standard", None)), known, both)
    assert chosen(model, Demand(100)).replica is both[1]


def deadline_fleet() -> tuple[Model, Replica, Replica]:
    """Fast is quicker and dearer."""
    known = release(standard=variant(speed=SLOW), fast=variant(speed=QUICK, lossless_to="standard"))
    both = replicas("standard") + replicas("fast")
    return Model(settings(fast=priced("fast", 36.0)), known, both), both[0], both[1]


@pytest.mark.parametrize(
    ("slo", "variant_name", "reason"),
    [
        ({}, "standard", "cheapest_within_quality"),
        ({"slo_ttft_s": 0.2, "slo_tpot_s": 0.03}, "standard", "cheapest_within_quality"),
        ({"slo_tpot_s": 0.015}, "fast", "deadline"),
        ({"slo_ttft_s": 0.06}, "fast", "deadline"),
        ({"slo_tpot_s": 0.001}, "fast", "deadline_missed"),
        ({"slo_ttft_s": 0.06, "slo_tpot_s": 0.001}, "fast", "deadline_missed"),
    ],
)
def test_the_deadline_decides(slo: dict[str, float], variant_name: str, reason: str) -> None:
    model, _, _ = deadline_fleet()
    decision = chosen(model, Demand(256, **slo))  # type: ignore[arg-type]
    assert (decision.replica.variant, decision.reason) == (variant_name, reason)


def test_load_counts_for_the_deadline() -> None:
    model, standard, _ = deadline_fleet()
    demand = Demand(256, slo_tpot_s=0.025)
    assert chosen(model, demand).replica is standard
    standard.in_flight = 20
    decision = chosen(model, demand)
    assert (decision.replica.variant, decision.reason) == ("fast", "deadline")


def test_no_deadline_overrules_quality() -> None:
    model, standard, _ = fleet()
    decision = chosen(model, Demand(256, slo_tpot_s=0.015))
    assert (decision.replica, decision.reason) == (standard, "deadline_missed")


def test_floor_is_the_cheapest_whatever_its_quality() -> None:
    model, _, fast = fleet()
    decision = chosen(model, Demand(100, goal="floor"))
    assert (decision.replica, decision.reason, decision.quality_loss) == (fast, "floor", None)


def test_nitro_is_the_quickest_whatever_it_costs() -> None:
    model, _, fast = deadline_fleet()
    decision = chosen(model, Demand(100, goal="nitro"))
    assert (decision.replica, decision.reason) == (fast, "nitro")
    fast.in_flight = 200
    assert chosen(model, Demand(100, goal="nitro")).replica.variant == "standard"


def test_a_request_that_would_cost_too_much_is_refused() -> None:
    model, _, _ = fleet(lossless_to="standard")
    cost = chosen(model, Demand(100, max_tokens=10)).predicted_cost
    assert chosen(model, Demand(100, max_tokens=10, max_cost=cost + 1)).predicted_cost == cost
    error = refusal(model, Demand(100, max_tokens=10, max_cost=cost - 1))
    body = json.loads(error.body)["error"]
    assert (error.status, body["code"]) == (400, "max_cost_exceeded")
    assert f"{cost / 1e9:.9f} USD" in body["message"]


def test_the_highest_cost_outranks_the_deadline() -> None:
    model, standard, _ = deadline_fleet()
    cost = chosen(model, Demand(256)).predicted_cost
    decision = chosen(model, Demand(256, slo_tpot_s=0.015, max_cost=cost + 1))
    assert (decision.replica, decision.reason) == (standard, "deadline_missed")


def test_a_pin_obeys_the_highest_cost() -> None:
    model, _, _ = fleet()
    assert refusal(model, Demand(100, pin="fast", max_cost=1)).status == 400


def test_when_the_cheapest_is_full_the_next_serves() -> None:
    model, standard, fast = fleet(lossless_to="standard")
    fast.in_flight = fast.max_in_flight
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.reason) == (standard, "fallback_load")


@pytest.mark.parametrize("signal", [{"waiting": 1}, {"in_flight": 64}, {"kv_usage": 0.99}])
def test_when_requests_queue_in_the_cheapest_engine_another_serves(signal: dict[str, float]) -> None:
    model, standard, fast = fleet(lossless_to="standard")
    for name, value in signal.items():
        setattr(fast, name, value)
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.reason) == (standard, "fallback_load")
    standard.waiting = 1
    assert chosen(model, Demand(100)).replica is fast


def test_full_is_busy_and_not_ready_is_unavailable() -> None:
    model, standard, fast = fleet()
    standard.in_flight = standard.max_in_flight
    # Fast has room, and is not known to be good enough.
    assert model.choose(Demand(100), 0.0) is BUSY
    fast.in_flight = fast.max_in_flight
    assert model.choose(Demand(100, pin="fast"), 0.0) is BUSY
    standard.ready = False
    error = refusal(model, Demand(100))
    assert (error.status, json.loads(error.body)["error"]["code"]) == (503, "variant_unavailable")
    assert (b"retry-after", b"5") in error.headers


def test_only_what_is_ready_serves() -> None:
    model, standard, fast = fleet(lossless_to="standard")
    fast.draining = True
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.reason) == (standard, "only_ready")
    fast.draining, standard.ready = False, False
    decision = chosen(model, Demand(100))
    assert (decision.replica, decision.reason) == (fast, "only_ready")


def test_a_replica_that_was_tried_is_tried_again_only_if_there_is_no_other() -> None:
    model, standard, fast = fleet(lossless_to="standard")
    assert chosen(model, Demand(100), exclude={fast.url}).replica is standard
    assert chosen(model, Demand(100), exclude={fast.url, standard.url}).replica is fast
    assert chosen(model, Demand(100, pin="fast"), exclude={fast.url}).replica is fast
