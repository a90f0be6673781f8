"""Which of a variant's replicas: the one that knows the prompt's prefix unless it is too busy, or the least loaded."""

from collections.abc import Collection, Sequence
from math import ceil, inf

from router.choice.replica import Replica
from router.choice.ring import Ring

# A prefix's replica takes it up to this many times the mean load (consistent hashing with bounded loads, Mirrokni et
# al. 2018).
LOAD_BOUND = 1.25
# Where a new replica's share starts.
FIRST_WEIGHT = 0.1
# Above this an engine soon has to throw requests out of its KV cache and compute them again.
KV_FULL = 0.95

Spot = tuple[Replica, Replica]
"""The replica to use, and the least loaded one. Both have a free place, or no replica has."""


class Balance:
    """The replicas of one variant. `slow_start` in seconds."""

    __slots__ = ("_by_url", "_clock", "_ring", "_slow_start", "replicas")

    def __init__(self, slow_start: float) -> None:
        self._slow_start = slow_start
        self._clock = 0.0
        self.replicas: Sequence[Replica] = ()
        self._by_url: dict[str, Replica] = {}
        self._ring = Ring(())

    def configure(self, slow_start: float) -> None:
        """Takes another slow start, and keeps its state."""
        self._slow_start = slow_start

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self._by_url = {replica.url: replica for replica in self.replicas}
        self._ring = Ring(self.replicas)

    def find(self, url: str) -> Replica | None:
        return self._by_url.get(url)

    def weight(self, replica: Replica, now: float) -> float:
        """Its share, from `FIRST_WEIGHT` when it became ready to 1."""
        age = now - replica.ready_since
        if age >= self._slow_start:
            return 1.0
        return FIRST_WEIGHT + (1 - FIRST_WEIGHT) * max(0.0, age) / self._slow_start

    def pick(self, key: int | None, now: float, exclude: Collection[str], stay: str | None = None) -> Spot | None:
        """A replica for a prompt whose prefix has this key. None where none is open.

        Args:
            exclude: URLs of replicas that are not wanted.
            stay: the URL of the replica to use as long as it is open and has a place.
        """
        if stay is not None:
            held = self._by_url.get(stay)
            if held is not None and held.open and held.in_flight < held.max_in_flight and stay not in exclude:
                return held, held
        slow_start = self._slow_start
        clock = self._clock
        best: Replica | None = None
        full: Replica | None = None
        best_score = best_turn = full_load = inf
        loads = 0
        weights = 0.0
        for replica in self.replicas:
            if not replica.ready or replica.draining or replica.breaker_open or (exclude and replica.url in exclude):
                continue
            in_flight = replica.in_flight
            load = in_flight + replica.waiting
            weight = 1.0 if now - replica.ready_since >= slow_start else self.weight(replica, now)
            loads += load
            weights += weight
            if in_flight >= replica.max_in_flight:
                if load < full_load:
                    full, full_load = replica, load
                continue
            score = load / (weight * replica.max_in_flight)
            if score <= best_score:
                # Between equals, whose turn it is, so that idle replicas take turns by weight.
                turn = replica.turn if replica.turn > clock else clock
                if score < best_score or turn < best_turn:
                    best, best_score, best_turn = replica, score, turn
        if best is None:
            return None if full is None else (full, full)
        if key is None:
            return best, best
        bound = LOAD_BOUND * (loads + 1) / weights

        def weigh(replica: Replica) -> float:
            in_flight = replica.in_flight
            if (
                not replica.ready
                or replica.draining
                or replica.breaker_open
                or in_flight >= replica.max_in_flight
                or (exclude and replica.url in exclude)
            ):
                return 0.0
            weight = 1.0 if now - replica.ready_since >= slow_start else self.weight(replica, now)
            busy = in_flight + replica.waiting >= ceil(bound * weight) or replica.kv_usage >= KV_FULL
            return 0.0 if busy else weight

        return self._ring.first(key, weigh) or best, best

    def took(self, replica: Replica, now: float) -> None:
        """The least loaded replica was used. A prefix's or a session's own replica is used out of turn."""
        start = replica.turn if replica.turn > self._clock else self._clock
        self._clock = start
        replica.turn = start + 1 / self.weight(replica, now)
