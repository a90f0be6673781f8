"""What is known of a variant before any request: what it can do, how good it is, and where its speed was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from router.config import DEFAULT_VARIANT, VariantSettings
from twinspeed.release import Release, Variant

ANY_TASK = "all"
_MODALITIES = frozenset(("image", "audio"))
# vLLM refuses these beside speculation.
_NOT_SPECULATING = frozenset(("min_p", "logit_bias", "logits_processors"))


@dataclass(frozen=True, slots=True)
class Traits:
    """One variant. Losses are against `standard`, 0 to 1, by task kind; `all` holds for kinds without their own."""

    context: float
    """Tokens; infinite where no release says it."""
    cannot: frozenset[str]
    losses: Mapping[str, float]
    max_num_seqs: int | None
    """What one replica's engine works on at once; None where no release says it."""

    def loss(self, kind: str) -> float | None:
        loss = self.losses.get(kind)
        return loss if loss is not None else self.losses.get(ANY_TASK)


def traits(name: str, settings: Mapping[str, VariantSettings], release: Release | None) -> Traits:
    """A variant that the release does not know has the traits that its settings say."""
    known = release.variants.get(name) if release else None
    losses = _losses(name, settings, release)
    if known is None:
        return Traits(inf, _NOT_SPECULATING if settings[name].speculates else frozenset(), losses, None)
    cannot = frozenset(known.capabilities.sampling_not_supported)
    if known.speculation is not None:
        cannot |= {"logits_processors"}
    cannot |= _MODALITIES - set(known.capabilities.modalities)
    context = min(known.capabilities.context, known.engine.max_model_len)
    return Traits(context, cannot, losses, known.engine.max_num_seqs * known.engine.parallel.data)


def machine(release: Release | None) -> str | None:
    """The machine whose speed evidence counts: of those that all measured variants share, the one used last.

    None where there is no such machine, or no evidence.
    """
    measured = [each.evidence.speed for each in release.variants.values() if each.evidence.speed] if release else []
    if not measured:
        return None
    shared = frozenset.intersection(*(frozenset(one.machine for one in speed) for speed in measured))
    dated = [(one.date, one.machine) for speed in measured for one in speed if one.machine in shared]
    return max(dated)[1] if dated else None


def _losses(name: str, settings: Mapping[str, VariantSettings], release: Release | None) -> Mapping[str, float]:
    """Those of the variant that this one equals, if it equals one; `standard`'s are 0."""
    seen: set[str] = set()
    while name != DEFAULT_VARIANT:
        known = release.variants.get(name) if release else None
        equal = known.lossless_to if known else settings[name].lossless_to if name in settings else None
        if equal is None or equal in seen:
            return _measured_losses(known) if known else {}
        seen.add(name)
        name = equal
    return {ANY_TASK: 0.0}


def _measured_losses(variant: Variant) -> dict[str, float]:
    """The interval's high end, and the worst of several; noise that makes a variant better than `standard` is 0."""
    losses: dict[str, float] = {}
    for each in variant.evidence.quality:
        if each.measure == "quality_loss":
            high = each.interval.high if each.interval else each.value
            losses[each.workload] = max(losses.get(each.workload, 0.0), high)
    return losses
