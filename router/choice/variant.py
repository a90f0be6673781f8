"""One variant as the choice sees it, and what a request would take and cost on one of its replicas."""

from dataclasses import dataclass

from router.choice.balance import KV_FULL, Balance
from router.choice.demand import Demand
from router.choice.evidence import Traits, machine, traits
from router.choice.prices import Prices, nano_usd_per_second
from router.choice.replica import Replica
from router.choice.speed import CACHED_SHARE, FIXED_SHARE, SHARE_PER_TOKEN, Matrix, Rates, Speed
from router.config import ModelSettings
from router.record import Usage
from twinspeed.release import Release


@dataclass(slots=True, eq=False)
class Option:
    """One replica for one request, with what is predicted of it. Seconds, nano-USD."""

    variant: "Variant"
    replica: Replica
    loss: float | None
    full: bool
    queued: bool
    """Whether the request would wait in the engine's queue."""
    expected: Usage
    batch: int
    rates: Rates
    prompt_s: float
    """Seconds of the hardware that the prompt takes."""
    ttft: float
    tpot: float
    e2e: float
    cost: float
    on_time: bool
    in_turn: bool = False
    """Whether it is the least loaded replica."""
    compared: float = 0.0

    def compare(self, batch: int) -> float:
        """What the request would cost here at a batch of this size, by the variant's `rate`; kept in `compared`."""
        seconds = self.prompt_s + self.expected.completion * self.rates.output_s(batch)
        self.compared = self.variant.rate * seconds
        return self.compared


@dataclass(slots=True, eq=False)
class Variant:
    """`nano_per_s` is what a second of one replica costs, `rate` what variants are compared by."""

    name: str
    order: int
    traits: Traits
    speed: Speed
    balance: Balance
    nano_per_s: float
    rate: float

    def option(self, replica: Replica, loss: float | None, demand: Demand, expected: Usage, now: float) -> Option:
        """What the request would take on this replica at its present load."""
        rates = self.speed.rates(demand.task_kind, now)
        largest = rates.largest
        in_flight, waiting = replica.in_flight, replica.waiting
        # The engine sees other routers' requests too, but is asked only now and then.
        seen = replica.running + waiting
        batch = (in_flight if in_flight > seen else seen) + 1
        inside = batch if batch < largest else largest
        uncached = expected.prompt - expected.cached
        curve = rates.curve
        tpot = curve.tpot[inside] * rates.tpot_factor
        ttft = curve.ttft[inside] * rates.ttft_factor * (FIXED_SHARE + SHARE_PER_TOKEN * uncached)
        if batch > largest:
            # Those ahead in the engine's queue each wait for a place, and `largest` places become free in the time
            # of one answer.
            ttft += (batch - largest) * expected.completion * tpot / largest
        slo_ttft, slo_tpot = demand.slo_ttft_s, demand.slo_tpot_s
        prompt_s = rates.prefill * (uncached + CACHED_SHARE * expected.cached)
        return Option(
            self,
            replica,
            loss,
            in_flight >= replica.max_in_flight,
            batch > largest or waiting > 0 or replica.kv_usage >= KV_FULL,
            expected,
            batch,
            rates,
            prompt_s,
            ttft,
            tpot,
            ttft + (expected.completion - 1) * tpot,
            (prompt_s + expected.completion * tpot / inside) * self.nano_per_s,
            (slo_ttft is None or ttft <= slo_ttft) and (slo_tpot is None or tpot <= slo_tpot),
        )

    def prices(self, rates: Rates, batch: int) -> Prices:
        """Nano-USD per token when a replica works on so many requests at once."""
        uncached = rates.prefill * self.nano_per_s
        return Prices(uncached, uncached * CACHED_SHARE, rates.output_s(batch) * self.nano_per_s)


def build(settings: ModelSettings, release: Release | None, slow_start: float) -> dict[str, Variant]:
    """A model's variants by name, without replicas. Those that the release does not know have no evidence."""
    # A second's price compares variants only if each has one; else the hardware's time does.
    priced = all(each.usd_per_hour is not None for each in settings.variants.values())
    where = machine(release)
    built = {}
    for order, (name, each) in enumerate(settings.variants.items()):
        known = release.variants.get(name) if release else None
        its = traits(name, settings.variants, release)
        speed = Speed(Matrix(known.evidence.speed if known else (), where), its.max_num_seqs or each.max_in_flight)
        nano_per_s = nano_usd_per_second(each.usd_per_hour)
        built[name] = Variant(name, order, its, speed, Balance(slow_start), nano_per_s, nano_per_s if priced else 1.0)
    return built
