"""Who gets a place when one becomes free, who is refused, and that no place is ever lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable

import pytest

from router.config import Lane, LaneName, Lanes
from router.errors import ApiError
from router.lanes import Queue

pytestmark = pytest.mark.unit


class Places:
    """So many places of each kind, and who got one, in order."""

    def __init__(self, lanes: Lanes | None = None, **free: int) -> None:
        self.free = dict(free)
        self.log: list[str] = []
        self.depth: dict[str, int] = {}
        self.queue: Queue[Hashable] = Queue(lanes or Lanes(), self.depth.__setitem__)

    def take(self, kind: str) -> str | None:
        if not self.free.get(kind):
            return None
        self.free[kind] -= 1
        return kind

    def give_back(self, kind: Hashable) -> None:
        self.free[str(kind)] += 1
        self.queue.wake()

    async def ask(self, name: str, lane: LaneName, deadline: float = 0.0, kind: str = "any") -> None:
        await self.queue.wait(lane, deadline, kind, lambda: self.take(kind), self.give_back)
        self.log.append(name)

    async def settle(self) -> None:
        """Lets every task run until it waits."""
        for _ in range(5):
            await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 10))  # type: ignore[arg-type]


def test_interactive_goes_by_deadline_then_rollout_then_batch() -> None:
    async def scenario() -> None:
        places = Places(any=0)
        asks = [
            places.ask("batch", "batch", 0.0),
            places.ask("late", "interactive", 9.0),
            places.ask("rollout", "rollout", 0.0),
            places.ask("soon", "interactive", 1.0),
            places.ask("soon too", "interactive", 1.0),
        ]
        tasks = [asyncio.create_task(ask) for ask in asks]
        await places.settle()
        for _ in asks:
            places.give_back("any")
            await places.settle()
        await asyncio.gather(*tasks)
        assert places.log == ["soon", "soon too", "late", "rollout", "batch"]
        assert set(places.depth.values()) == {0}

    run(scenario)


def test_a_kind_without_a_place_does_not_hold_up_another() -> None:
    async def scenario() -> None:
        places = Places(fast=0, standard=0)
        tasks = [asyncio.create_task(places.ask(f"fast {n}", "interactive", n, "fast")) for n in range(3)]
        tasks.append(asyncio.create_task(places.ask("standard", "interactive", 99, "standard")))
        await places.settle()
        places.give_back("standard")
        await places.settle()
        assert places.log == ["standard"]
        places.free["fast"] = 3
        places.queue.wake()
        await asyncio.gather(*tasks)
        assert places.log == ["standard", "fast 0", "fast 1", "fast 2"]

    run(scenario)


def test_new_requests_do_not_overtake_those_who_wait_unless_their_lane_does() -> None:
    async def scenario() -> None:
        places = Places(any=0)
        assert not places.queue.others_first("batch")
        task = asyncio.create_task(places.ask("rollout", "rollout"))
        await places.settle()
        assert not places.queue.others_first("interactive")
        assert places.queue.others_first("rollout")
        assert places.queue.others_first("batch")
        places.give_back("any")
        await task

    run(scenario)


def test_a_full_lane_refuses_with_a_reason_and_when_to_come_again() -> None:
    async def scenario() -> None:
        places = Places(Lanes(interactive=Lane(queue=1, max_wait=30)), any=0)
        first = asyncio.create_task(places.ask("first", "interactive"))
        await places.settle()
        with pytest.raises(ApiError, match=r"The lane interactive is full: its queue holds 1 requests\.") as refused:
            await places.ask("second", "interactive")
        assert (refused.value.status, refused.value.code) == (429, "lane_full")
        assert (b"retry-after", b"1") in refused.value.headers
        batch = asyncio.create_task(places.ask("batch", "batch"))
        await places.settle()
        for _ in range(2):
            places.give_back("any")
        await asyncio.gather(first, batch)

    run(scenario)


def test_a_wait_that_takes_too_long_is_refused_and_forgotten() -> None:
    async def scenario() -> None:
        places = Places(Lanes(interactive=Lane(queue=5, max_wait=0.05)), any=0)
        with pytest.raises(ApiError, match=r"no replica was free for 0\.05 s"):
            await places.ask("late", "interactive")
        places.give_back("any")
        assert places.free == {"any": 1}
        assert places.depth == {"interactive": 0}

    run(scenario)


def test_an_error_while_a_place_is_looked_for_reaches_the_one_who_waits() -> None:
    async def scenario() -> None:
        places = Places(any=0)

        def take() -> str | None:
            if places.free["any"]:
                raise ApiError(503, "gone", code="variant_unavailable")
            return None

        broken = asyncio.create_task(places.queue.wait("interactive", 0, "broken", take, places.give_back))
        healthy = asyncio.create_task(places.ask("healthy", "interactive", 1))
        await places.settle()
        places.give_back("any")
        with pytest.raises(ApiError, match="gone"):
            await broken
        await healthy

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_lost_whoever_leaves_whenever(seed: int) -> None:
    """Hundreds of requests, cancelled at random moments: before, in and after their turn."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def scenario() -> None:
        places = Places(a=2, b=1)
        served = 0

        async def request() -> None:
            nonlocal served
            kind = chance.choice("ab")
            lane: LaneName = chance.choice(("interactive", "batch", "rollout"))
            place = places.take(kind)
            if place is None:
                take, deadline = (lambda: places.take(kind)), chance.random()
                await places.queue.wait(lane, deadline, kind, take, places.give_back)
            try:
                served += 1
                await asyncio.sleep(chance.random() / 500)
            finally:
                places.give_back(kind)

        tasks = [asyncio.create_task(request()) for _ in range(400)]
        while not all(task.done() for task in tasks):
            for task in chance.sample(tasks, 3):
                task.cancel()
            await asyncio.sleep(chance.choice((0, 0, 0.001)))
        await asyncio.gather(*tasks, return_exceptions=True)
        assert places.free == {"a": 2, "b": 1}
        assert set(places.depth.values()) == {0}
        assert served > 20

    run(scenario)
