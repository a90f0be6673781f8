"""Who goes next when every replica is busy: interactive requests by deadline, the other lanes from what is left."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.config import LaneName, Lanes
from router.errors import ApiError

# From first to last, when a place becomes free.
ORDER: tuple[LaneName, ...] = ("interactive", "rollout", "batch")
PlaceT = TypeVar("PlaceT")


@dataclass(order=True, slots=True)
class _Waiter(Generic[PlaceT]):
    deadline: float
    number: int
    take: Callable[[], PlaceT | None] = field(compare=False)
    turn: asyncio.Future[PlaceT] = field(compare=False)


class Queue(Generic[PlaceT]):
    """The waiting requests of one model.

    Requests of one `kind` can use the same places, so when the first of a kind finds none, the others need not try.
    """

    def __init__(self, lanes: Lanes, measure: Callable[[LaneName, int], None]) -> None:
        self._lanes = lanes
        self._measure = measure
        self._lines: dict[LaneName, dict[Hashable, list[_Waiter[PlaceT]]]] = {name: {} for name in ORDER}
        self._count: dict[LaneName, int] = dict.fromkeys(ORDER, 0)
        self._numbers = itertools.count()

    def configure(self, lanes: Lanes) -> None:
        """Takes new bounds; those who wait already stay."""
        self._lanes = lanes

    def others_first(self, lane: LaneName) -> bool:
        """Whether requests are waiting that a new one of this lane must not overtake."""
        for each in ORDER:
            if self._count[each]:
                return True
            if each == lane:
                return False
        return False

    async def wait(
        self,
        lane: LaneName,
        deadline: float,
        kind: Hashable,
        take: Callable[[], PlaceT | None],
        give_back: Callable[[PlaceT], None],
    ) -> PlaceT:
        """Waits for a place. `deadline`, in the loop's time, orders the lane.

        `take` takes a place if there is one; it is called in the event loop when one may have become free.
        `give_back` returns a place that came as its request was cancelled.

        Raises:
            ApiError: 429 where the lane is full, or the wait was too long.
        """
        settings = self._lanes.named(lane)
        if self._count[lane] >= settings.queue:
            raise _full(lane, f"its queue holds {settings.queue} requests", retry_after=1)
        turn: asyncio.Future[PlaceT] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(deadline, next(self._numbers), take, turn)
        heapq.heappush(self._lines[lane].setdefault(kind, []), waiter)
        self._change(lane, 1)
        try:
            async with asyncio.timeout(settings.max_wait):
                return await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.cancelled():
                self._change(lane, -1)
                self._drop(lane, kind, waiter)
            elif turn.exception() is None:
                give_back(turn.result())
            if isinstance(error, TimeoutError):
                raise _full(lane, f"no replica was free for {settings.max_wait:g} s", retry_after=5) from None
            raise

    def wake(self) -> None:
        """A place may have become free: those who can take one do, in order."""
        for lane in ORDER:
            lines = self._lines[lane]
            while lines:
                placed = False
                for kind in sorted(lines, key=lambda each: lines[each][0]):
                    placed = self._try(lane, kind)
                    if placed:
                        break
                if not placed:
                    break

    def _try(self, lane: LaneName, kind: Hashable) -> bool:
        """Whether the first of a kind is done with waiting: it has a place, or an error instead of one."""
        waiter = self._lines[lane][kind][0]
        if not waiter.turn.cancelled():
            try:
                place = waiter.take()
            except ApiError as error:
                waiter.turn.set_exception(error)
            else:
                if place is None:
                    return False
                waiter.turn.set_result(place)
            self._change(lane, -1)
        self._drop(lane, kind, waiter)
        return True

    def _change(self, lane: LaneName, by: int) -> None:
        self._count[lane] += by
        self._measure(lane, self._count[lane])

    def _drop(self, lane: LaneName, kind: Hashable, waiter: _Waiter[PlaceT]) -> None:
        line = self._lines[lane].get(kind, [])
        if line and line[0] is waiter:
            heapq.heappop(line)
        elif waiter in line:
            line.remove(waiter)
            heapq.heapify(line)
        if not line:
            self._lines[lane].pop(kind, None)


def _full(lane: LaneName, why: str, *, retry_after: int) -> ApiError:
    message = f"The lane {lane} is full: {why}. Try again in {retry_after} s."
    return ApiError(429, message, code="lane_full", headers=[(b"retry-after", b"%d" % retry_after)])
