"""A choice in words: for every replica, what speaks for and against it."""

from collections.abc import Mapping

from router.choice.demand import Candidate, Demand, Reason
from router.choice.eligible import admit, is_good_enough, lacks
from router.choice.ranking import Choice
from router.choice.replica import Replica
from router.choice.variant import Option, Variant
from router.errors import ApiError
from router.record import NANO, Usage

_WON: dict[Reason, str] = {
    "pinned": "The request asks for this variant.",
    "session": "It served the session's last turn.",
    "cheapest_within_quality": "It is the cheapest that is good enough.",
    "deadline": "It is the cheapest in time: a cheaper one is too slow.",
    "deadline_missed": "All are too slow, and it is the quickest.",
    "fallback_load": "It is the cheapest with room: a cheaper one has none.",
    "floor": "The request asks for the cheapest.",
    "nitro": "The request asks for the quickest.",
    "only_capable": "It alone can do what the request needs.",
    "only_ready": "It alone is ready.",
    "default": "No other variant is known to be good enough.",
}


def candidates(
    name: str,
    variants: Mapping[str, Variant],
    max_loss: float,
    demand: Demand,
    expected: Usage,
    choice: Choice | None,
    now: float,
) -> list[Candidate]:
    """All replicas of the model `name`: the chosen one, the other eligible ones by cost, then the rest."""
    try:
        admitted = {variant.name for variant, _ in admit(name, variants, max_loss, demand)[0]}
    except ApiError:
        admitted = set()
    compared = {option.replica: option for option in choice.options} if choice else {}
    options = [
        compared.get(replica) or variant.option(replica, variant.traits.loss(demand.task_kind), demand, expected, now)
        for variant in variants.values()
        for replica in variant.balance.replicas
    ]
    batch = max((option.batch for option in compared.values() or options), default=1)
    found = []
    for option in options:
        variant = option.variant
        chosen = choice is not None and option is choice.option
        fault = None if chosen else _fault(name, option, demand, max_loss, admitted)
        if chosen:
            verdict = _WON[choice.reason] if choice else ""
        else:
            verdict = fault or (_lost(option, choice, demand) if choice else "")
        found.append(
            Candidate(
                variant=variant.name,
                replica=option.replica.url,
                predicted_ttft_s=option.ttft,
                predicted_tpot_s=option.tpot,
                predicted_e2e_s=option.e2e,
                predicted_cost=round(option.cost),
                compared_cost=option.compare(batch),
                quality_loss=option.loss,
                eligible=fault is None,
                chosen=chosen,
                verdict=verdict,
            )
        )
    return sorted(found, key=lambda each: (not each.chosen, not each.eligible, each.compared_cost))


def _fault(name: str, option: Option, demand: Demand, max_loss: float, admitted: set[str]) -> str | None:
    """Why it may not serve the request."""
    variant = option.variant
    if variant.name not in admitted:
        return _not_admitted(name, variant, option.loss, demand, max_loss)
    state = _state(option.replica)
    if state is not None:
        return state
    if option.full:
        return f"It has {option.replica.in_flight} requests, all that it takes."
    if demand.max_cost is not None and option.cost > demand.max_cost:
        return f"Too dear: {option.cost / NANO:.9f} USD expected, {demand.max_cost / NANO:.9f} allowed."
    return None


def _not_admitted(name: str, variant: Variant, loss: float | None, demand: Demand, max_loss: float) -> str:
    if demand.pin is not None and demand.pin != variant.name:
        return f"The request asks for `{name}:{demand.pin}`."
    if demand.pin is None and demand.goal == "policy" and not is_good_enough(loss, max_loss):
        if loss is None:
            return f"Nothing is known of its quality loss on {demand.task_kind}."
        return f"Its quality loss on {demand.task_kind} may be {loss:.4f}, above the {max_loss:.4f} allowed."
    return f"It does not support {' and '.join(lacks(variant, demand))}."


def _state(replica: Replica) -> str | None:
    if not replica.ready:
        return "It is not ready."
    if replica.draining:
        return "It is draining."
    return "It failed too often just now." if replica.breaker_open else None


def _lost(option: Option, choice: Choice, demand: Demand) -> str:
    """Why another was taken."""
    winner = choice.option
    if choice.reason == "session":
        return f"The session stays with {winner.variant.name} at {winner.replica.url}."
    own = next((each for each in choice.options if each.variant is option.variant), None)
    if own is not None and own.replica is not option.replica:
        return f"Of {option.variant.name}, {own.replica.url} comes first: it is less busy or knows the prompt's prefix."
    if winner.on_time and not option.on_time:
        return _late(option, demand)
    if choice.reason in ("nitro", "deadline_missed"):
        return f"Slower: {option.e2e:.3f} s expected, {winner.e2e:.3f} s on {winner.variant.name}."
    if option.queued and not winner.queued:
        return "Requests are waiting in its engine."
    if option.compared > winner.compared:
        return (
            f"Dearer: {_times(option.compared, winner.compared)} the cost on {winner.variant.name} at the present load."
        )
    return f"As cheap as {winner.variant.name}, and no quicker."


def _late(option: Option, demand: Demand) -> str:
    for what, expected, asked in (
        ("to the first token", option.ttft, demand.slo_ttft_s),
        ("per output token", option.tpot, demand.slo_tpot_s),
    ):
        if asked is not None and expected > asked:
            return f"Too slow: {expected * 1000:.1f} ms {what} expected, {asked * 1000:.1f} asked for."
    return "Too slow."


def _times(value: float, base: float) -> str:
    return f"{value / base:.2f} times" if base else "more than"
