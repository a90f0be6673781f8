"""The explanation is the truth."""

import random
from collections import Counter

import pytest

from router.choice import Candidate, Decision, Demand, Goal, Model
from router.choice.demand import Busy
from router.errors import ApiError
from tests.router.choice.fleets import chosen, measurement, priced, release, replicas, settings, speeds, variant
from twinspeed.release import Variant

pytestmark = pytest.mark.unit

GOALS: tuple[Goal, ...] = ("policy", "policy", "floor", "nitro")


def random_variant(draw: random.Random, *, lossless: bool) -> Variant:
    ttft, tpot = draw.uniform(20, 500), draw.uniform(5, 50)
    kinds = [kind for kind in ("chat", "code", "all") if draw.random() < 0.6]
    return variant(
        speed=speeds(ttft, {1: tpot, 32: tpot * draw.uniform(1, 20)}) if draw.random() < 0.8 else (),
        quality=tuple(measurement("quality_loss", 0.0, high=draw.uniform(0, 0.1), workload=kind) for kind in kinds),
        lossless_to="standard" if lossless and draw.random() < 0.4 else None,
        cannot=tuple(need for need in ("min_p", "logit_bias") if draw.random() < 0.3),
        context=draw.choice([2_000, 32_000]),
        max_num_seqs=draw.choice([4, 64]),
    )


def random_model(draw: random.Random) -> Model:
    names = ("standard", "fast", "student")
    known = release(**{name: random_variant(draw, lossless=name != "standard") for name in names})
    price = {name: draw.choice([None, 1.0, 2.0, 4.0]) if draw.random() < 0.2 else draw.uniform(1, 4) for name in names}
    fleet = [replica for name in names for replica in replicas(name, draw.randint(0, 4), max_in_flight=24)]
    for replica in fleet:
        replica.in_flight = draw.randint(0, 24)
        replica.waiting = draw.choice([0, 0, 0, 5])
        replica.kv_usage = draw.random()
        replica.ready = draw.random() < 0.8
        replica.draining = draw.random() < 0.1
        replica.breaker_open = draw.random() < 0.1
        replica.ready_since = draw.uniform(0, 100)
    configured = settings(draw.uniform(0, 0.1), None, **{name: priced(name, price[name]) for name in names})
    return Model(configured, known if draw.random() < 0.9 else None, fleet)


def random_demand(draw: random.Random) -> Demand:
    return Demand(
        prompt_tokens=draw.randint(1, 3_000),
        max_tokens=draw.choice([None, 1, 500]),
        pin=draw.choice([None, None, None, "standard", "fast"]),
        goal=draw.choice(GOALS),
        needs=frozenset(need for need in ("min_p", "logit_bias", "image") if draw.random() < 0.1),
        task_kind=draw.choice(["chat", "code", "poetry"]),
        session=draw.choice([None, "a", "b"]),
        prefix_hash=draw.choice([None, draw.randrange(1 << 32)]),
        slo_ttft_s=draw.choice([None, draw.uniform(0.01, 2)]),
        slo_tpot_s=draw.choice([None, draw.uniform(0.005, 0.1)]),
        max_cost=draw.choice([None, None, draw.randrange(20_000_000)]),
    )


def test_what_is_explained_is_what_is_chosen() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(1000):
        draw = random.Random(seed)
        model = random_model(draw)
        now = 90.0
        for _ in range(4):
            demand = random_demand(draw)
            now += 5
            explained = [candidate for candidate in model.explain(demand, now) if candidate.chosen]
            decision: Decision | Busy | None
            try:
                decision = model.choose(demand, now)
            except ApiError:
                decision = None
            if isinstance(decision, Decision):
                outcomes[decision.reason] += 1
                [winner] = explained
                assert winner.replica == decision.replica.url, f"seed {seed}"
                assert winner.eligible, f"seed {seed}"
                assert winner.predicted_cost == decision.predicted_cost, f"seed {seed}"
                assert winner.predicted_e2e_s == decision.predicted_e2e_s, f"seed {seed}"
                decision.replica.in_flight += 1
            else:
                outcomes["busy" if decision else "refused"] += 1
                assert explained == [], f"seed {seed}"
    # The fleets are varied enough for every outcome.
    assert set(outcomes) == {
        *("pinned", "session", "cheapest_within_quality", "deadline", "deadline_missed", "fallback_load", "floor"),
        *("nitro", "only_capable", "only_ready", "default", "busy", "refused"),
    }


def test_explaining_changes_nothing() -> None:
    draw = random.Random(7)
    quiet, explained = replicas("standard", 3), replicas("standard", 3)
    one, other = Model(settings(), None, quiet), Model(settings(), None, explained)
    for now in range(200):
        demand = random_demand(draw)
        demand.pin, demand.needs, demand.max_cost = None, frozenset(), None
        other.explain(demand, float(now))
        assert chosen(one, demand, float(now)).replica.url == chosen(other, demand, float(now)).replica.url


def test_every_replica_is_explained_and_the_chosen_one_comes_first() -> None:
    model = Model(settings(), None, replicas("standard", 2) + replicas("fast", 2))
    found = model.explain(Demand(100), 0.0)
    assert [candidate.variant for candidate in found] == ["standard", "standard", "fast", "fast"]
    assert [candidate.chosen for candidate in found] == [True, False, False, False]


def verdict(model: Model, demand: Demand, variant_name: str) -> Candidate:
    [found] = [each for each in model.explain(demand, 0.0) if each.variant == variant_name]
    return found


def test_verdicts_say_what_speaks_against_a_replica() -> None:
    slow, quick = speeds(100.0, {1: 20.0}), speeds(50.0, {1: 10.0})
    lossy = variant(speed=quick, quality=(measurement("quality_loss", 0.0, high=0.2),), cannot=("min_p",))
    equal = variant(speed=slow, lossless_to="standard")
    fleet = replicas("standard") + replicas("fast")
    model = Model(settings(0.1), release(standard=variant(speed=slow), fast=lossy), fleet)
    found = verdict(model, Demand(100), "fast")
    assert (found.eligible, found.quality_loss) == (False, 0.2)
    assert "may be 0.2000, above the 0.1000 allowed" in found.verdict
    assert "Nothing is known" in verdict(model, Demand(100, task_kind="math"), "fast").verdict
    assert "`min_p`" in verdict(model, Demand(100, goal="floor", needs=frozenset(["min_p"])), "fast").verdict
    assert ":standard" in verdict(model, Demand(100, pin="standard"), "fast").verdict

    dearer = Model(
        settings(standard=priced("standard", 7.2)),
        release(standard=equal.model_copy(update={"lossless_to": None}), fast=equal),
        fleet,
    )
    found = verdict(dearer, Demand(100), "standard")
    assert found.eligible
    assert found.verdict == "Dearer: 2.00 times the cost on fast at the present load."
    assert "Too dear" in verdict(dearer, Demand(100, max_cost=6_000_000), "standard").verdict

    fleet[1].in_flight = 40
    late = verdict(dearer, Demand(100, slo_tpot_s=0.021), "fast")
    assert late.eligible
    assert "Too slow: " in late.verdict
    assert "ms per output token" in late.verdict
    fleet[1].in_flight = 256
    assert "256 requests, all that it takes" in verdict(dearer, Demand(100), "fast").verdict
    fleet[1].draining = True
    assert verdict(dearer, Demand(100), "fast").verdict == "It is draining."
