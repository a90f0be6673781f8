"""How quick a variant is at a batch size: the release's speed matrix, corrected by what requests really took."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import exp, log

from twinspeed.release import Measurement

# Without evidence. Any guess serves: one request corrects it.
PRIOR_TTFT_S = 0.2
PRIOR_TPOT_S = 0.02
# A release says how long the first token takes, not for how long a prompt: taken to be this many tokens …
REFERENCE_PROMPT = 256
# … with this share of the time spent on what does not grow with the prompt.
FIXED_SHARE = 0.2
SHARE_PER_TOKEN = (1 - FIXED_SHARE) / REFERENCE_PROMPT
# Finding a token in the prefix cache, against computing it.
CACHED_SHARE = 0.1
# Time ∝ batch^this where a single batch size was measured: batching is neither free (0) nor useless (1).
GROWTH = 0.3

# An observation's weight once there are many; the first ones weigh as in a mean.
_WEIGHT = 0.1
# Evidence is believed again when nothing was observed for long: what went slow once is tried again.
_HALF_LIFE_S = 600.0
_LARGEST_LOG = log(100.0)


class Curve:
    """One task kind's seconds by batch size: index b holds those at b requests (index 0 as 1)."""

    __slots__ = ("tpot", "ttft")

    def __init__(self, ttft: Mapping[int, float], tpot: Mapping[int, float], largest: int) -> None:
        self.ttft = _by_batch(ttft, largest)
        self.tpot = _by_batch(tpot, largest)


class Rates:
    """A curve as corrected at some moment, and the seconds of one replica that its tokens take.

    Prompt tokens are computed at the replica's full rate, `prefill` each. A batch of b gives each request 1/b of the
    replica, so that an output token takes TPOT(b) ÷ b.
    """

    __slots__ = ("curve", "largest", "prefill", "tpot_factor", "ttft_factor")

    def __init__(self, curve: Curve, ttft_factor: float, tpot_factor: float) -> None:
        self.curve = curve
        self.ttft_factor = ttft_factor
        self.tpot_factor = tpot_factor
        self.largest = len(curve.tpot) - 1
        self.prefill = curve.ttft[1] * ttft_factor * SHARE_PER_TOKEN

    def output_s(self, batch: int) -> float:
        if batch > self.largest:
            batch = self.largest
        return self.curve.tpot[batch] * self.tpot_factor / batch


class Correction:
    """A mean of observed ÷ predicted, on a logarithmic scale, where twice and half as long weigh the same."""

    __slots__ = ("_at", "_count", "_fades", "_log")

    def __init__(self, *, evidence: bool) -> None:
        # Evidence counts as one observation of 1, and is what the mean fades back to.
        self._count = 1 if evidence else 0
        self._fades = evidence
        self._log = 0.0
        self._at = 0.0

    def factor(self, now: float) -> float:
        return exp(self._faded(now))

    def observe(self, observed: float, predicted: float, now: float) -> None:
        """Both in seconds, `predicted` without correction."""
        if observed <= 0 or predicted <= 0:
            return
        self._count += 1
        weight = max(_WEIGHT, 1 / self._count)
        value = min(_LARGEST_LOG, max(-_LARGEST_LOG, log(observed / predicted)))
        faded = self._faded(now)
        self._log = faded + weight * (value - faded)
        self._at = now

    def _faded(self, now: float) -> float:
        age = now - self._at
        return self._log * 0.5 ** (age / _HALF_LIFE_S) if self._fades and age > 0 else self._log


class Speed:
    """One variant's speed. In batches above `largest` a request waits until it is among them."""

    __slots__ = ("_curves", "_rates", "_second", "_tpot", "_ttft")

    def __init__(self, matrix: "Matrix", largest: int) -> None:
        pooled = matrix.pooled()
        ttft, tpot = pooled.ttft or {1: PRIOR_TTFT_S}, pooled.tpot or {1: PRIOR_TPOT_S}
        self._curves = {"": Curve(ttft, tpot, largest)} | {
            kind: Curve(both.ttft or ttft, both.tpot or tpot, largest) for kind, both in matrix.kinds.items()
        }
        self._ttft = Correction(evidence=bool(pooled.ttft))
        self._tpot = Correction(evidence=bool(pooled.tpot))
        self._rates: dict[str, Rates] = {}
        self._second = 0

    def rates(self, kind: str, now: float) -> Rates:
        """The task kind's own, or those of all together. They stay the same within a second, but for observations."""
        if kind not in self._curves:
            kind = ""
        second = int(now)
        if second != self._second:
            self._second = second
            self._rates.clear()
        rates = self._rates.get(kind)
        if rates is None:
            factors = self._ttft.factor(second), self._tpot.factor(second)
            rates = self._rates[kind] = Rates(self._curves[kind], *factors)
        return rates

    def observe(
        self, kind: str, batch: int, uncached: int, ttft_s: float | None, tpot_s: float | None, now: float
    ) -> None:
        """What a request that joined a batch took; None is unknown."""
        curve = self._curves.get(kind) or self._curves[""]
        largest = len(curve.tpot) - 1
        if batch > largest:
            # It waited in the engine's queue, which says nothing of the engine's speed.
            batch, ttft_s = largest, None
        if ttft_s is not None:
            predicted = curve.ttft[batch] * (FIXED_SHARE + SHARE_PER_TOKEN * uncached)
            self._ttft.observe(ttft_s, predicted, now)
        if tpot_s is not None:
            self._tpot.observe(tpot_s, curve.tpot[batch], now)
        self._rates.clear()


class Times:
    """Measured seconds by concurrency."""

    __slots__ = ("tpot", "ttft")

    def __init__(self) -> None:
        self.ttft: dict[int, float] = {}
        self.tpot: dict[int, float] = {}


class Matrix:
    """The figures of a release's speed evidence by task kind. Of several for the same place, the latest counts."""

    __slots__ = ("kinds",)

    def __init__(self, measurements: tuple[Measurement, ...] = (), machine: str | None = None) -> None:
        """`machine`: only what was measured on it; None for all."""
        self.kinds: dict[str, Times] = {}
        for each in sorted(measurements, key=lambda measurement: measurement.date):
            if each.measure not in ("ttft_ms", "tpot_ms") or each.value <= 0 or machine not in (None, each.machine):
                continue
            times = self.kinds.setdefault(each.workload, Times())
            (times.ttft if each.measure == "ttft_ms" else times.tpot)[each.concurrency] = each.value / 1000

    def pooled(self) -> Times:
        """The geometric mean over all kinds."""
        pooled = Times()
        pooled.ttft = _means(times.ttft for times in self.kinds.values())
        pooled.tpot = _means(times.tpot for times in self.kinds.values())
        return pooled


def _means(kinds: Iterable[Mapping[int, float]]) -> dict[int, float]:
    logs: dict[int, list[float]] = {}
    for measured in kinds:
        for concurrency, seconds in measured.items():
            logs.setdefault(concurrency, []).append(log(seconds))
    return {concurrency: exp(sum(each) / len(each)) for concurrency, each in logs.items()}


def _by_batch(measured: Mapping[int, float], largest: int) -> tuple[float, ...]:
    """Straight lines between logarithms of batch and seconds; outside, the nearest goes on, at most ∝ batch."""
    points = sorted((log(batch), log(seconds)) for batch, seconds in measured.items())
    slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)]
    below, above = (min(1.0, max(0.0, slope)) for slope in ((slopes[0], slopes[-1]) if slopes else (GROWTH, GROWTH)))
    values = []
    segment = 0
    for batch in range(1, largest + 1):
        x = log(batch)
        while segment < len(points) and points[segment][0] < x:
            segment += 1
        if segment == 0:
            start, slope = points[0], below
        elif segment == len(points):
            start, slope = points[-1], above
        else:
            start, slope = points[segment - 1], slopes[segment - 1]
        values.append(exp(start[1] + slope * (x - start[0])))
    return (values[0], *values)
