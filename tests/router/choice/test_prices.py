"""What tokens cost, to the nano-USD."""

import pytest

from router.choice import Demand, Model, Prices, cost
from router.record import Usage
from tests.router.choice.fleets import chosen, release, replicas, settings, speeds, variant

pytestmark = pytest.mark.unit


def test_each_prompt_token_is_billed_once() -> None:
    prices = Prices(uncached=10.0, cached=1.0, output=100.0)
    assert cost(prices, Usage(prompt=50, completion=7, cached=20)) == 30 * 10 + 20 * 1 + 7 * 100
    assert cost(prices, Usage(prompt=50, completion=0)) == 500


def test_more_cached_tokens_than_prompt_tokens_are_billed_as_a_cached_prompt() -> None:
    assert cost(Prices(10.0, 1.0, 100.0), Usage(prompt=5, completion=0, cached=9)) == 5


def test_costs_are_whole_nano_usd() -> None:
    assert cost(Prices(0.4, 0.04, 0.4), Usage(prompt=1, completion=1)) == 1


def model(in_flight: int = 0) -> Model:
    known = release(standard=variant(speed=speeds(320.0, {1: 20.0, 8: 32.0})), fast=variant())
    return Model(settings(), known, replicas("standard", in_flight=in_flight))


def test_prices_are_the_hardware_at_the_measured_speed() -> None:
    prices = chosen(model(), Demand(100)).prices
    # 0.001 USD/s: 20 ms for an output token; 80 % of 320 ms for the 256 tokens of the reference prompt.
    assert prices.output == pytest.approx(1e6 * 0.020)
    assert prices.uncached == pytest.approx(1e6 * 0.256 / 256)
    assert prices.cached == pytest.approx(prices.uncached / 10)


def test_a_batch_shares_the_hardware() -> None:
    decision = chosen(model(in_flight=7), Demand(100))
    assert decision.prices.output == pytest.approx(1e6 * 0.032 / 8)
    assert decision.predicted_cost == cost(decision.prices, decision.expected)


def test_the_predicted_cost_is_what_the_expected_usage_costs() -> None:
    decision = chosen(model(), Demand(100, max_tokens=50))
    assert decision.expected == Usage(100, 50)
    assert decision.predicted_cost == cost(decision.prices, decision.expected) == 100 * 1000 + 50 * 20_000


def test_hardware_without_a_price_costs_nothing() -> None:
    free = Model(settings(usd_per_hour=None), None, replicas("standard"))
    decision = chosen(free, Demand(100))
    assert decision.predicted_cost == cost(decision.prices, Usage(1000, 1000)) == 0


def test_without_evidence_prices_follow_the_speed_that_was_seen() -> None:
    unknown = Model(settings(), None, replicas("standard"))
    before = chosen(unknown, Demand(100))
    unknown.observe(before, Usage(100, 10), ttft_s=None, tpot_s=before.predicted_tpot_s * 5, now=1.0)
    assert chosen(unknown, Demand(100), 1.0).prices.output == pytest.approx(before.prices.output * 5)


def test_the_highest_cost_is_that_of_the_dearest_variant_that_may_serve() -> None:
    known = release(
        standard=variant(speed=speeds(100.0, {1: 20.0})), fast=variant(speed=speeds(100.0, {1: 10.0}, "chat"))
    )
    both = Model(settings(), known, replicas("standard") + replicas("fast"))
    demand = Demand(1, max_tokens=100)
    assert both.highest_cost(demand, 0.0) == pytest.approx(100 * 20_000, rel=0.001)
    assert both.highest_cost(Demand(1, max_tokens=100, pin="fast"), 0.0) == pytest.approx(100 * 10_000, rel=0.001)
