"""Many requests at once never get more than a limit, from several tasks or several processes."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from router.limits import Refusal, Reservation
from tests.router.limits.bench import bench, opened, start_child, wait_until

pytestmark = pytest.mark.unit

# Each lets 40 of the requests below pass.
LIMITS: dict[str, dict[str, Any]] = {
    "rate_limit_requests": {"rpm": 40},
    "rate_limit_tokens": {"tpm": 409},
    "concurrency_limit": {"concurrency": 40},
    "budget_day_exceeded": {"budget_day_usd": 4009e-9},
    "budget_month_exceeded": {"budget_month_usd": 4009e-9},
}
TOKENS, COST = 10, 100


@pytest.mark.parametrize("code", LIMITS)
def test_requests_at_once_never_overshoot(url: str, code: str) -> None:
    async def main() -> None:
        async with bench(url, **LIMITS[code]) as b:
            answers = await asyncio.gather(*(b.try_reserve(TOKENS, COST) for _ in range(200)))
            granted = [each for each in answers if isinstance(each, Reservation)]
            assert len(granted) == 40
            assert {each.code for each in answers if isinstance(each, Refusal)} == {code}
            usage = await b.usage()
            assert (usage.in_flight, usage.reserved_cost) == (40, 40 * COST)
            await asyncio.gather(*(b.settle(each, TOKENS, COST) for each in granted))
            usage = await b.usage()
            assert (usage.in_flight, usage.reserved_cost) == (0, 0)
            assert (usage.day_cost, usage.day_tokens, usage.day_requests) == (40 * COST, 40 * TOKENS, 40)

    asyncio.run(main())


@pytest.mark.parametrize("code", LIMITS)
def test_processes_together_never_overshoot(shared_url: str, code: str) -> None:
    async def main() -> None:
        async with bench(shared_url, **LIMITS[code]) as b:
            children = [start_child("reserve_at_once", shared_url, b.secret, 67, TOKENS, COST) for _ in range(3)]
            assert sum(_run_together(children)) == 40
            b.store.fixed_time = None  # type: ignore[attr-defined]
            usage = await b.usage()
            assert (usage.in_flight, usage.reserved_cost) == (40, 40 * COST)

    asyncio.run(main())


def test_what_processes_settle_adds_up(shared_url: str) -> None:
    async def main() -> None:
        limits = {"rpm": 10**9, "tpm": 10**9, "concurrency": 1000, "budget_day_usd": 1, "budget_month_usd": 1}
        async with bench(shared_url, **limits) as b:
            children = [start_child("reserve_and_settle", shared_url, b.secret, 150) for _ in range(3)]
            total = sum(_run_together(children))
            assert total == 3 * 150 * 151 // 2
            b.store.fixed_time = None  # type: ignore[attr-defined]
            usage = await b.usage()
            assert (usage.month_cost, usage.month_tokens, usage.month_requests) == (total, total, 450)
            assert (usage.in_flight, usage.reserved_cost) == (0, 0)
            held = await b.reserve()
            assert held.remaining_tokens == 10**9 - total

    asyncio.run(main())


def test_a_caller_that_goes_away_leaves_nothing_behind(shared_url: str) -> None:
    async def main() -> None:
        async with bench(shared_url, rpm=1000, tpm=10**6, concurrency=100, budget_day_usd=1) as b:
            await b.cancel(await b.reserve())
            for turns in range(60):
                task = asyncio.create_task(b.try_reserve(TOKENS, COST))
                for _ in range(turns % 20):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    reserved = await task
                    assert isinstance(reserved, Reservation)
                    await b.cancel(reserved)
        async with opened(shared_url) as store:
            usage = await store.usage(b.key.id)
            assert usage is not None
            assert (usage.in_flight, usage.reserved_cost, usage.day_requests, usage.day_cost) == (0, 0, 0, 0)

    asyncio.run(main())


def test_a_settlement_is_booked_though_its_caller_goes_away(shared_url: str) -> None:
    async def main() -> None:
        async with bench(shared_url) as b:
            held = [await b.reserve(TOKENS, COST) for _ in range(20)]
            for turns, each in enumerate(held):
                task = asyncio.create_task(b.settle(each, 1, 2))
                for _ in range(1 + turns):
                    await asyncio.sleep(0)
                task.cancel()

            async def booked() -> bool:
                usage = await b.usage()
                return (usage.in_flight, usage.day_tokens, usage.day_cost) == (0, 20, 40)

            await wait_until(booked)

    asyncio.run(main())


def _run_together(children: list[Any]) -> list[int]:
    """Lets the children go once all are ready; what each says at the end."""
    with contextlib.ExitStack() as stack:
        for child in children:
            stack.enter_context(child)
        for child in children:
            assert json.loads(child.stdout.readline()) == "ready"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        return [json.loads(child.stdout.readline()) for child in children]
