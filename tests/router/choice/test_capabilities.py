"""Pins, and what a variant is able to do."""

import json

import pytest

from router.choice import Demand, Model, Replica
from router.errors import ApiError
from tests.router.choice.fleets import NAME, NGRAM, chosen, priced, release, replicas, settings, variant
from twinspeed.errors import InputError
from twinspeed.release import Variant

pytestmark = pytest.mark.unit

BOTH = ("standard", "fast")


def fleet(standard: Variant, fast: Variant) -> Model:
    return Model(settings(), release(standard=standard, fast=fast), replicas("standard") + replicas("fast"))


def refusal(model: Model, demand: Demand) -> tuple[int, str, str]:
    with pytest.raises(ApiError) as caught:
        model.choose(demand, 0.0)
    error = json.loads(caught.value.body)["error"]
    return caught.value.status, error["code"], error["message"]


def test_a_pin_is_obeyed_whatever_its_quality_and_speed() -> None:
    model = fleet(variant(), variant())
    for name in BOTH:
        decision = chosen(model, Demand(100, pin=name, slo_tpot_s=1e-9))
        assert (decision.replica.variant, decision.reason) == (name, "pinned")


@pytest.mark.parametrize("need", ["min_p", "logit_bias", "logits_processors"])
def test_a_pin_is_refused_for_what_the_variant_lacks_and_names_who_has_it(need: str) -> None:
    model = fleet(variant(), variant(cannot=("min_p", "logit_bias"), speculation=NGRAM))
    status, code, message = refusal(model, Demand(100, pin="fast", needs=frozenset([need, "tools"])))
    assert (status, code) == (400, "capability_not_supported")
    assert "Variant fast" in message
    assert f"`{need}`" in message
    assert f"`{NAME}:standard`" in message
    assert "tools" not in message


def test_a_pin_without_a_ready_replica_is_unavailable() -> None:
    model = Model(settings(), None, [*replicas("standard"), *replicas("fast", ready=False)])
    status, code, message = refusal(model, Demand(100, pin="fast"))
    assert (status, code) == (503, "variant_unavailable")
    assert f"variant fast of `{NAME}`" in message
    assert f"`{NAME}:standard`" in message


def test_without_a_pin_what_a_variant_lacks_goes_to_another() -> None:
    model = fleet(variant(), variant(cannot=("min_p",), lossless_to="standard"))
    decision = chosen(model, Demand(100, needs=frozenset(["min_p"])))
    assert (decision.replica.variant, decision.reason) == ("standard", "only_capable")


@pytest.mark.parametrize("need", ["min_p", "logit_bias", "logits_processors"])
def test_without_a_release_a_variant_that_speculates_lacks_what_speculation_rules_out(need: str) -> None:
    configured = settings(fast=priced("fast", 1.0, speculates=True, lossless_to="standard"))
    model = Model(configured, None, replicas("standard") + replicas("fast"))
    assert chosen(model, Demand(100)).replica.variant == "fast"
    assert chosen(model, Demand(100, needs=frozenset([need]))).replica.variant == "standard"
    assert refusal(model, Demand(100, pin="fast", needs=frozenset([need])))[1] == "capability_not_supported"


def test_floor_and_nitro_obey_capabilities() -> None:
    configured = settings(fast=priced("fast", 0.1, speculates=True))
    model = Model(configured, None, replicas("standard") + replicas("fast"))
    assert chosen(model, Demand(100, goal="floor")).replica.variant == "fast"
    assert chosen(model, Demand(100, goal="floor", needs=frozenset(["min_p"]))).replica.variant == "standard"


def test_pictures_go_to_a_variant_that_takes_them() -> None:
    seeing = fleet(variant(modalities=("text", "image")), variant(lossless_to="standard"))
    assert chosen(seeing, Demand(100, needs=frozenset(["image"]))).replica.variant == "standard"
    blind = fleet(variant(), variant(lossless_to="standard"))
    status, code, message = refusal(blind, Demand(100, needs=frozenset(["image"])))
    assert (status, code) == (400, "capability_not_supported")
    assert "no variant of this model has that" in message


def test_what_only_a_lossy_variant_can_do_is_refused_and_said() -> None:
    model = fleet(variant(), variant(modalities=("text", "audio")))
    message = refusal(model, Demand(100, needs=frozenset(["audio"])))[2]
    assert f"ask for `{NAME}:fast`" in message


def test_a_long_prompt_goes_to_a_variant_with_room_for_it_and_its_answer() -> None:
    model = fleet(variant(context=32_000), variant(context=4_000, lossless_to="standard"))
    assert chosen(model, Demand(3_000)).replica.variant in BOTH
    assert chosen(model, Demand(3_000, max_tokens=2_000)).replica.variant == "standard"
    assert chosen(model, Demand(5_000)).replica.variant == "standard"


def test_a_prompt_that_seems_too_long_for_all_is_left_to_the_engine_with_the_most_room() -> None:
    model = fleet(variant(context=4_000), variant(context=8_000, lossless_to="standard"))
    assert chosen(model, Demand(9_000)).replica.variant == "fast"


def test_a_pin_is_refused_for_its_context_only_beyond_doubt() -> None:
    model = fleet(variant(context=32_000), variant(context=4_000))
    assert chosen(model, Demand(5_000, pin="fast")).replica.variant == "fast"
    status, code, message = refusal(model, Demand(9_000, pin="fast"))
    assert (status, code) == (400, "capability_not_supported")
    assert "a context of more than 4000 tokens" in message
    assert refusal(model, Demand(10, max_tokens=4_000, pin="fast"))[0] == 400


def test_the_engines_own_limit_counts_where_it_is_below_the_models() -> None:
    short = variant(context=32_000)
    short = short.model_copy(update={"engine": short.engine.model_copy(update={"max_model_len": 1_000})})
    known = release(standard=variant(context=32_000), fast=short.model_copy(update={"lossless_to": "standard"}))
    configured = settings(fast=priced("fast", 1.0))
    model = Model(configured, known, replicas("standard") + replicas("fast"))
    assert chosen(model, Demand(100)).replica.variant == "fast"
    assert chosen(model, Demand(2_000)).replica.variant == "standard"


def test_a_replica_of_a_variant_that_there_is_not_is_an_error() -> None:
    with pytest.raises(InputError, match="no variant 'slow'"):
        Model(settings(), None, [Replica("http://x:1", "slow", "m:slow")])
