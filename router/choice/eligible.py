"""Which variants may serve a request: those that are able to, and good enough."""

from collections.abc import Mapping

from router.choice.demand import Demand
from router.choice.variant import Variant
from router.errors import ApiError

Admitted = list[tuple[Variant, float | None]]
"""Variants with their expected quality loss."""


def admit(name: str, variants: Mapping[str, Variant], max_loss: float, demand: Demand) -> tuple[Admitted, bool]:
    """The variants that may serve this, and whether others that are good enough are not able to.

    The loss bound holds for the policy. A pin, `floor` and `nitro` are the client's own wish, so any quality will do.

    Raises:
        ApiError: 400 `capability_not_supported`, none is able to; names what is lacking and who has it.
    """
    if demand.pin is not None:
        pinned = variants[demand.pin]
        lacking = demand.needs & pinned.traits.cannot if demand.needs else None
        # The prompt's length is an estimate; unless it is far too long the engine, which can count, shall judge.
        if lacking or demand.prompt_tokens // 2 + (demand.max_tokens or 1) > pinned.traits.context:
            raise _refusal(name, variants, [pinned], demand)
        return [(pinned, pinned.traits.loss(demand.task_kind))], False
    length = demand.prompt_tokens + (demand.max_tokens or 1)
    bounded = demand.goal == "policy"
    able: Admitted = []
    too_short: Admitted = []
    unable: list[Variant] = []
    for variant in variants.values():
        traits = variant.traits
        loss = traits.loss(demand.task_kind)
        if bounded and not is_good_enough(loss, max_loss):
            continue
        if demand.needs and not demand.needs.isdisjoint(traits.cannot):
            unable.append(variant)
        elif length > traits.context:
            too_short.append((variant, loss))
        else:
            able.append((variant, loss))
    if able:
        return able, bool(unable or too_short)
    if too_short:
        # By an estimate nothing is refused: the one with the most room gets it.
        return [max(too_short, key=lambda each: each[0].traits.context)], True
    raise _refusal(name, variants, unable, demand)


def is_good_enough(loss: float | None, max_loss: float) -> bool:
    return loss is not None and loss <= max_loss


def lacks(variant: Variant, demand: Demand) -> list[str]:
    """What the request needs and the variant has not, in words."""
    lacking = [f"`{need}`" for need in sorted(demand.needs & variant.traits.cannot)]
    if demand.prompt_tokens + (demand.max_tokens or 1) > variant.traits.context:
        lacking.append(f"a context of more than {variant.traits.context:g} tokens")
    return lacking


def _refusal(name: str, variants: Mapping[str, Variant], asked: list[Variant], demand: Demand) -> ApiError:
    lacking = list(dict.fromkeys(what for variant in asked for what in lacks(variant, demand)))
    # `standard` is always among those asked where there is no pin.
    named = " and ".join(variant.name for variant in asked)
    having = [f"`{name}:{variant.name}`" for variant in variants.values() if not lacks(variant, demand)]
    advice = f"ask for {' or '.join(having)}" if having else "no variant of this model has that"
    message = f"Variant {named} of `{name}` does not support {' and '.join(lacking)}: {advice}."
    param = next(iter(sorted(demand.needs.intersection(*(variant.traits.cannot for variant in asked)))), None)
    return ApiError(400, message, code="capability_not_supported", param=param)
