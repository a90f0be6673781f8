"""What tokens cost: the hardware's price for the time that they take of it."""

from dataclasses import dataclass

from router.record import NANO, Usage

SECONDS_PER_HOUR = 3600


@dataclass(slots=True)
class Prices:
    """Nano-USD per token. `cached` prompt tokens were found in the engine's prefix cache."""

    uncached: float
    cached: float
    output: float


def nano_usd_per_second(usd_per_hour: float | None) -> float:
    """What a second of a replica costs; hardware without a price costs nothing."""
    return 0.0 if usd_per_hour is None else usd_per_hour * NANO / SECONDS_PER_HOUR


def cost(prices: Prices, usage: Usage) -> int:
    """Nano-USD for these tokens. Each prompt token is billed once: as cached, or else as uncached."""
    cached = usage.cached if usage.cached < usage.prompt else usage.prompt
    uncached = usage.prompt - cached
    return round(uncached * prices.uncached + cached * prices.cached + usage.completion * prices.output)
