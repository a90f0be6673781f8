"""Which of the options wins, and why."""

from dataclasses import dataclass

from router.choice.demand import BUSY, Busy, Demand, Reason
from router.choice.variant import Option
from router.config import DEFAULT_VARIANT
from router.errors import ApiError


@dataclass(slots=True)
class Choice:
    """The winner, the reason, and the options that it was one of."""

    option: Option
    reason: Reason
    options: list[Option]


def rank(options: list[Option], demand: Demand, *, alone: Reason | None) -> tuple[Option, Reason] | Busy:
    """The option to take. BUSY where none that may be taken has a free place.

    Args:
        options: one or more, with their compared costs.
        alone: the reason to give where there was no choice.

    Raises:
        ApiError: 400 `max_cost_exceeded`, the cheapest would cost more than the client wants.
    """
    if demand.max_cost is not None:
        affordable = [option for option in options if option.cost <= demand.max_cost]
        if not affordable:
            raise _too_dear(options, demand.max_cost)
        options = affordable
    cheapest = min(options, key=_cheapest) if len(options) > 1 else options[0]
    by_cost = demand.pin is None and demand.goal != "nitro"
    if by_cost and not cheapest.full and not cheapest.queued and cheapest.on_time:
        return cheapest, "floor" if demand.goal == "floor" else alone or "cheapest_within_quality"
    free = [option for option in options if not option.full]
    if not free:
        return BUSY
    on_time = [option for option in free if option.on_time]
    if demand.pin is not None:
        return min(on_time or free, key=_quickest), "pinned"
    if not on_time:
        return min(free, key=_quickest), "deadline_missed"
    if demand.goal == "nitro":
        return min(on_time, key=_quickest), "nitro"
    winner = min(on_time, key=_soonest_and_cheapest)
    if demand.goal == "floor":
        return winner, "floor"
    if alone is not None:
        return winner, alone
    if winner.variant is cheapest.variant:
        return winner, "cheapest_within_quality"
    return winner, "fallback_load" if cheapest.full or cheapest.on_time else "deadline"


def reason_alone(admitted: int, options: list[Option], unable: bool) -> Reason | None:
    """Why there is no choice among variants; None where there is one."""
    variant = options[0].variant
    for option in options:
        if option.variant is not variant:
            return None
    if admitted > 1:
        return "only_ready"
    if unable:
        return "only_capable"
    return "default" if variant.name == DEFAULT_VARIANT else "only_ready"


def _quickest(option: Option) -> tuple[float, float, int]:
    return option.e2e, option.compared, option.variant.order


def _cheapest(option: Option) -> tuple[float, float, int]:
    return option.compared, option.e2e, option.variant.order


def _soonest_and_cheapest(option: Option) -> tuple[bool, float, float, int]:
    # One that would make the request wait in its engine gives no cheaper tokens, only later ones.
    return option.queued, option.compared, option.e2e, option.variant.order


def _too_dear(options: list[Option], max_cost: int) -> ApiError:
    cheapest = min(options, key=lambda option: option.cost)
    message = (
        f"The request is expected to cost {cheapest.cost / 1e9:.9f} USD on {cheapest.variant.name}, the cheapest "
        f"variant that may serve it, which is more than the {max_cost / 1e9:.9f} USD that it allows. "
        "Allow more, or lower `max_tokens`."
    )
    return ApiError(400, message, code="max_cost_exceeded")
