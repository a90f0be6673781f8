"""Which replica: prefixes, load, and new ones."""

from collections import Counter

import pytest

from router.choice import BUSY, Demand, Model, Replica
from tests.router.choice.fleets import NAME, chosen, release, replicas, settings, speeds, variant

pytestmark = pytest.mark.unit

KEYS = range(2_000)


def standard(fleet: list[Replica], slow_start: float = 30.0) -> Model:
    return Model(settings(), None, fleet, slow_start=slow_start)


def homes(model: Model, now: float = 0.0) -> dict[int, str]:
    return {key: chosen(model, Demand(100, prefix_hash=key * 7919), now).replica.url for key in KEYS}


def test_a_prefix_has_one_replica() -> None:
    model = standard(replicas("standard", 5))
    assert homes(model) == homes(model)


def test_every_process_finds_the_same_replica() -> None:
    assert homes(standard(replicas("standard", 5))) == homes(standard(replicas("standard", 5)[::-1]))


def test_prefixes_spread_evenly() -> None:
    counts = Counter(homes(standard(replicas("standard", 8))).values())
    assert len(counts) == 8
    assert max(counts.values()) < 1.5 * len(KEYS) / 8
    assert min(counts.values()) > 0.5 * len(KEYS) / 8


def test_adding_or_removing_a_replica_moves_only_its_own_prefixes() -> None:
    fleet = replicas("standard", 8)
    model = standard(fleet)
    before = homes(model)
    new = Replica("http://standard-new:8000", "standard", f"{NAME}:standard", ready=True)
    model.set_replicas([*fleet, new])
    after = homes(model)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {new.url}
    assert 0.5 / 9 < len(moved) / len(KEYS) < 1.6 / 9
    model.set_replicas(fleet[1:])
    without = homes(model)
    assert {before[key] for key in KEYS if before[key] != without[key]} == {fleet[0].url}


def test_a_replica_that_is_not_ready_for_a_while_moves_only_its_own_prefixes() -> None:
    fleet = replicas("standard", 8)
    model = standard(fleet)
    before = homes(model)
    fleet[3].ready = False
    during = homes(model)
    assert {before[key] for key in KEYS if before[key] != during[key]} == {fleet[3].url}
    fleet[3].ready = True
    assert homes(model) == before


def test_one_hot_prefix_takes_no_replica_beyond_the_load_bound() -> None:
    fleet = replicas("standard", 4)
    model = standard(fleet)
    for number in range(400):
        decision = chosen(model, Demand(100, prefix_hash=42))
        decision.replica.in_flight += 1
        mean = (number + 1) / 4
        assert decision.replica.in_flight <= 1.25 * mean + 1
    loads = [replica.in_flight for replica in fleet]
    assert max(loads) == 125
    assert min(loads) > 0


def test_the_engines_queue_is_load_too() -> None:
    fleet = replicas("standard", 2)
    model = standard(fleet)
    home = chosen(model, Demand(100, prefix_hash=42)).replica
    home.waiting = 50
    assert chosen(model, Demand(100, prefix_hash=42)).replica is not home
    assert chosen(model, Demand(100)).replica is not home


def test_a_full_kv_cache_takes_no_prefixes() -> None:
    fleet = replicas("standard", 2)
    model = standard(fleet)
    home = chosen(model, Demand(100, prefix_hash=42)).replica
    home.kv_usage = 0.99
    assert chosen(model, Demand(100, prefix_hash=42)).replica is not home


def test_without_a_prefix_the_least_loaded_serves() -> None:
    fleet = replicas("standard", 3, in_flight=9)
    fleet[1].in_flight = 8
    assert chosen(standard(fleet), Demand(100)).replica is fleet[1]


def test_load_is_relative_to_what_a_replica_takes() -> None:
    fleet = replicas("standard", 2)
    fleet[0].in_flight, fleet[0].max_in_flight = 6, 100
    fleet[1].in_flight, fleet[1].max_in_flight = 5, 10
    assert chosen(standard(fleet), Demand(100)).replica is fleet[0]


def test_idle_replicas_take_turns() -> None:
    model = standard(replicas("standard", 3))
    counts = Counter(chosen(model, Demand(100)).replica.url for _ in range(300))
    assert set(counts.values()) == {100}


@pytest.mark.parametrize("prefixes", [True, False])
def test_a_new_replicas_share_grows(prefixes: bool) -> None:
    fleet = replicas("standard", 4)
    model = standard(fleet, slow_start=30.0)
    fleet[0].ready_since = 100.0
    shares = []
    for now in (100.0, 115.0, 130.0):
        count = 0
        for key in KEYS:
            demand = Demand(100, prefix_hash=key * 7919 if prefixes else None)
            count += chosen(model, demand, now).replica is fleet[0]
        shares.append(count / len(KEYS))
    tolerance = 0.08 if prefixes else 0.01
    assert shares == pytest.approx([0.1 / 3.1, 0.55 / 3.55, 0.25], abs=tolerance)
    assert shares[0] < shares[1] < shares[2]


def test_a_new_replica_among_busy_ones_gets_its_share_of_the_load() -> None:
    fleet = replicas("standard", 4)
    model = standard(fleet, slow_start=30.0)
    fleet[0].ready_since = 100.0
    for _ in range(310):
        chosen(model, Demand(100), 100.0).replica.in_flight += 1
    assert fleet[0].in_flight == pytest.approx(10, abs=1)


def test_a_hot_prefix_does_not_disturb_whose_turn_it_is() -> None:
    model = standard(replicas("standard", 3))
    counts: Counter[str] = Counter()
    for _ in range(300):
        home = chosen(model, Demand(100, prefix_hash=42)).replica
        chosen(model, Demand(100, prefix_hash=42))
        counts[chosen(model, Demand(100)).replica.url] += 1
    others = {f"http://standard-{number}:8000" for number in range(3)} - {home.url}
    assert {counts[url] for url in others} == {150}


def test_a_replica_that_comes_back_is_not_flooded_to_catch_up() -> None:
    fleet = replicas("standard", 2)
    model = standard(fleet)
    fleet[0].ready = False
    for _ in range(1000):
        chosen(model, Demand(100))
    fleet[0].ready = True
    counts = Counter(chosen(model, Demand(100)).replica.url for _ in range(100))
    assert counts[fleet[0].url] <= 51


@pytest.mark.parametrize("field", ["draining", "breaker_open"])
@pytest.mark.parametrize("prefix_hash", [None, 42])
def test_a_replica_that_is_out_gets_nothing(field: str, prefix_hash: int | None) -> None:
    fleet = replicas("standard", 3)
    model = standard(fleet)
    out = chosen(model, Demand(100, prefix_hash=prefix_hash)).replica
    setattr(out, field, True)
    assert out not in {chosen(model, Demand(100, prefix_hash=prefix_hash)).replica for _ in range(50)}


def test_a_full_replica_gets_nothing() -> None:
    fleet = replicas("standard", 2, max_in_flight=3)
    model = standard(fleet)
    for _ in range(6):
        chosen(model, Demand(100, prefix_hash=42)).replica.in_flight += 1
    assert [replica.in_flight for replica in fleet] == [3, 3]
    assert model.choose(Demand(100, prefix_hash=42), 0.0) is BUSY
    fleet[1].in_flight -= 1
    assert chosen(model, Demand(100, prefix_hash=42)).replica is fleet[1]


def test_no_prefix_is_worth_a_missed_deadline() -> None:
    known = release(standard=variant(speed=speeds(100.0, {1: 20.0, 4: 40.0})), fast=variant())
    fleet = replicas("standard", 2)
    model = Model(settings(), known, fleet)
    demand = Demand(100, prefix_hash=42)
    home = chosen(model, demand).replica
    other = next(replica for replica in fleet if replica is not home)
    home.in_flight = 3
    other.in_flight = 3
    assert chosen(model, demand).replica is home
    other.in_flight = 2
    assert chosen(model, demand).replica is home
    demand.slo_tpot_s = 0.036
    decision = chosen(model, demand)
    assert (decision.replica, decision.reason) == (other, "default")
