"""A session stays where its KV cache is."""

import pytest

from router.choice import Demand, Model, Replica, cost
from router.choice.sessions import TTL_S, Sessions
from router.record import Usage
from tests.router.choice.fleets import chosen, release, replicas, settings, speeds, variant

pytestmark = pytest.mark.unit


def fleet() -> tuple[Model, list[Replica]]:
    """Two of each, lossless: fast pays at a low batch only."""
    known = release(
        standard=variant(speed=speeds(100.0, {1: 20.0, 32: 40.0})),
        fast=variant(speed=speeds(100.0, {1: 10.0, 32: 80.0}), lossless_to="standard", cannot=("min_p",)),
    )
    all_four = replicas("standard", 2) + replicas("fast", 2)
    return Model(settings(), known, all_four), all_four


def test_a_session_keeps_variant_and_replica_as_load_shifts() -> None:
    model, all_four = fleet()
    first = chosen(model, Demand(100, session="a"))
    assert (first.replica.variant, first.reason) == ("fast", "cheapest_within_quality")
    for replica in all_four:
        replica.in_flight = 20
    first.replica.in_flight = 30
    again = chosen(model, Demand(200, session="a"))
    assert (again.replica, again.reason) == (first.replica, "session")
    assert chosen(model, Demand(200, session="b")).replica.variant == "standard"


def test_what_the_session_sent_before_is_expected_to_be_cached() -> None:
    model, _ = fleet()
    chosen(model, Demand(1000, session="a"))
    again = chosen(model, Demand(1200, session="a"))
    assert again.expected.cached == 1000
    assert again.predicted_ttft_s < chosen(model, Demand(1200)).predicted_ttft_s
    assert again.predicted_cost == cost(again.prices, again.expected)


def test_a_session_leaves_a_replica_that_cannot_serve_it() -> None:
    model, _ = fleet()
    first = chosen(model, Demand(100, session="a")).replica
    first.draining = True
    second = chosen(model, Demand(100, session="a"))
    # The variant stays, so that the answers keep their manner.
    assert second.replica is not first
    assert (second.replica.variant, second.reason, second.expected.cached) == ("fast", "session", 0)
    first.draining = False
    assert chosen(model, Demand(100, session="a")).replica is second.replica


def test_a_session_leaves_a_full_replica() -> None:
    model, _ = fleet()
    first = chosen(model, Demand(100, session="a")).replica
    first.in_flight = first.max_in_flight
    assert chosen(model, Demand(100, session="a")).replica is not first


def test_a_session_leaves_a_variant_that_is_full() -> None:
    model, all_four = fleet()
    assert chosen(model, Demand(100, session="a")).replica.variant == "fast"
    for replica in all_four[2:]:
        replica.in_flight = replica.max_in_flight
    assert chosen(model, Demand(100, session="a")).replica.variant == "standard"


def test_a_session_leaves_a_replica_that_was_tried() -> None:
    model, _ = fleet()
    first = chosen(model, Demand(100, session="a")).replica
    assert chosen(model, Demand(100, session="a"), exclude={first.url}).replica is not first


def test_a_session_leaves_a_variant_that_lacks_what_a_turn_needs() -> None:
    model, _ = fleet()
    assert chosen(model, Demand(100, session="a")).replica.variant == "fast"
    turn = chosen(model, Demand(100, session="a", needs=frozenset(["min_p"])))
    assert (turn.replica.variant, turn.reason) == ("standard", "only_capable")


def test_a_session_leaves_a_replica_that_would_be_late() -> None:
    model, _ = fleet()
    demand = Demand(100, session="a", slo_tpot_s=0.030)
    first = chosen(model, demand).replica
    first.in_flight = 30
    second = chosen(model, demand)
    assert second.replica is not first
    assert second.predicted_tpot_s <= 0.030


def test_each_wish_has_its_own_stay() -> None:
    model, _ = fleet()
    assert chosen(model, Demand(100, session="a")).replica.variant == "fast"
    pinned = chosen(model, Demand(100, session="a", pin="standard"))
    assert (pinned.replica.variant, pinned.reason) == ("standard", "pinned")
    assert chosen(model, Demand(100, session="a")).replica.variant == "fast"
    assert chosen(model, Demand(100, session="a", pin="standard")).replica is pinned.replica


def test_a_session_is_forgotten_after_its_time() -> None:
    model, all_four = fleet()
    assert chosen(model, Demand(100, session="a"), 0.0).replica.variant == "fast"
    assert chosen(model, Demand(100, session="a"), TTL_S - 1).reason == "session"
    for replica in all_four:
        replica.in_flight = 20
    assert chosen(model, Demand(100, session="a"), 2 * TTL_S - 2).reason == "session"
    assert chosen(model, Demand(100, session="a"), 3 * TTL_S).replica.variant == "standard"


def test_the_sessions_seen_last_are_kept() -> None:
    sessions = Sessions(max_sessions=3, ttl_s=100.0)
    for name in "abc":
        sessions.put(("policy", name), "fast", "http://x", 1, 0.0)
    sessions.put(("policy", "a"), "fast", "http://y", 2, 1.0)
    sessions.put(("policy", "d"), "fast", "http://x", 1, 2.0)
    assert len(sessions) == 3
    assert sessions.get(("policy", "b"), 2.0) is None
    stay = sessions.get(("policy", "a"), 2.0)
    assert stay is not None
    assert (stay.url, stay.tokens) == ("http://y", 2)


def test_old_sessions_do_not_pile_up() -> None:
    sessions = Sessions(max_sessions=1000, ttl_s=10.0)
    for second in range(500):
        sessions.put(("policy", str(second)), "fast", "http://x", 1, float(second))
    assert len(sessions) <= 11


def test_a_model_that_replaces_another_keeps_sessions_and_the_length_of_answers() -> None:
    model, all_four = fleet()
    first = chosen(model, Demand(100, session="a"))
    for _ in range(200):
        model.observe(first, Usage(100, 40), ttft_s=None, tpot_s=None, now=0.0)
    for replica in all_four:
        replica.in_flight = 20
    newer, _ = fleet()
    newer.set_replicas(all_four)
    newer.take_over(model)
    again = chosen(newer, Demand(100, session="a"))
    assert (again.replica, again.reason, again.expected.completion) == (first.replica, "session", 40)


def test_a_session_leaves_a_variant_that_is_not_good_enough_any_more() -> None:
    model, all_four = fleet()
    assert chosen(model, Demand(100, session="a")).replica.variant == "fast"
    newer = Model(settings(0.5), None, all_four)
    newer.take_over(model)
    assert chosen(newer, Demand(100, session="a")).replica.variant == "standard"
