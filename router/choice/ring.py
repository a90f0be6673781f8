"""A hash ring: which replica a prompt's prefix belongs to, so that few prefixes move when replicas come and go."""

from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b

from router.choice.replica import Replica

# Points per replica: shares differ by about 1/√100.
_POINTS = 100
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Ring:
    """Replicas on a circle, the same for every process that is given the same URLs.

    A replica's points have thresholds from 0 to 1; one whose weight is w uses those below w, hence a share of w.
    """

    __slots__ = ("_owners", "_points", "_steps")

    def __init__(self, replicas: Sequence[Replica]) -> None:
        placed = sorted(
            ((point, number) for number, replica in enumerate(replicas) for point in _points_of(replica.url)),
            key=lambda each: each[0][0],
        )
        self._points = [point for (point, _), _ in placed]
        self._owners = [(replicas[number], threshold) for (_, threshold), number in placed]
        # Enough to meet nearly every replica; looking on would take longer than it saves.
        self._steps = min(len(placed), max(32, 4 * len(replicas)))

    def first(self, key: int, weigh: Callable[[Replica], float]) -> Replica | None:
        """The first replica from the key's place on whose weight is above its point's threshold; weight 0 is never."""
        owners = self._owners
        size = len(owners)
        at = bisect(self._points, (key * _GOLDEN) & _MASK)
        weights: dict[Replica, float] = {}
        for step in range(at, at + self._steps):
            replica, threshold = owners[step % size]
            weight = weights.get(replica)
            if weight is None:
                weight = weights[replica] = weigh(replica)
            if threshold < weight:
                return replica
        return None


@lru_cache(maxsize=4096)
def _points_of(url: str) -> tuple[tuple[int, float], ...]:
    def point(number: int) -> int:
        return int.from_bytes(blake2b(f"{url}#{number}".encode(), digest_size=8).digest())

    return tuple((point(number), number / _POINTS) for number in range(_POINTS))
