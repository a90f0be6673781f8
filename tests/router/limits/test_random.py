"""Long random sequences: each store does what the plain reference does, and budgets add up."""

import asyncio
import random
import time
from dataclasses import astuple

import pytest

from router.limits import Refusal, Reservation
from tests.router.limits.bench import Bench, bench
from tests.router.limits.reference import Admitted, Reference

pytestmark = pytest.mark.unit

STEPS = 1200


async def compare(b: Bench, generator: random.Random) -> None:
    reference = Reference(b.key)
    held: list[tuple[Reservation, Admitted]] = []
    ended: list[Reservation] = []
    total = [0, 0, 0]
    for _ in range(STEPS):
        match generator.choices(
            ("reserve", "settle", "cancel", "again", "wait", "night", "look"), (50, 25, 5, 3, 15, 0.3, 3)
        )[0]:
            case "reserve":
                tokens, cost = generator.randrange(400), generator.choice((0, generator.randrange(10**9)))
                answer = await b.try_reserve(tokens, cost)
                expected = reference.reserve(tokens, cost, b.time)
                if isinstance(expected, Admitted):
                    assert isinstance(answer, Reservation), answer
                    requests, used = reference.window(b.time)
                    assert (b.key.rpm, b.key.tpm) == (answer.limit_requests, answer.limit_tokens)
                    assert answer.limit_requests is not None
                    assert answer.limit_tokens is not None
                    assert answer.remaining_requests == answer.limit_requests - requests
                    assert answer.remaining_tokens == answer.limit_tokens - used
                    assert answer.reset_s == pytest.approx(reference.reset(b.time))
                    held.append((answer, expected))
                else:
                    assert isinstance(answer, Refusal), answer
                    code, wait = expected
                    assert answer.code == code
                    assert answer.retry_after_s == pytest.approx(wait)
            case "settle" | "cancel" as how if held:
                reservation, admitted = held.pop(generator.randrange(len(held)))
                ended.append(reservation)
                tokens, cost, requests = 0, 0, int(generator.random() < 0.5)
                if how == "settle":
                    tokens = generator.randrange(admitted.tokens * 5 // 4 + 1)
                    cost, requests = generator.randrange(admitted.cost * 9 // 8 + 1), 1
                    await b.settle(reservation, tokens, cost)
                else:
                    await b.cancel(reservation, count_request=bool(requests))
                reference.end(admitted, tokens, cost, requests, b.time)
                total = [total[0] + cost, total[1] + tokens, total[2] + requests]
            case "again" if ended:
                await b.settle(generator.choice(ended), 1, 1)
            case "wait":
                b.advance(generator.choice((0.125, 1, 7.5, 59.875, 60, 61)) * generator.choice((0.25, 1, 1, 1)))
            case "night":
                b.advance(generator.randrange(3 * 86_400))
            case "look":
                await look(b, reference)
    await look(b, reference)
    for reservation, admitted in held:
        await b.settle(reservation, admitted.tokens, admitted.cost)
        reference.end(admitted, admitted.tokens, admitted.cost, 1, b.time)
        total = [total[0] + admitted.cost, total[1] + admitted.tokens, total[2] + 1]
    await look(b, reference)
    assert [sum(column) for column in zip(*(each.booked for each in reference.all), strict=True)] == total[:2]
    assert max_in_any_window(reference, 60) <= (b.key.rpm or 0)


async def look(b: Bench, reference: Reference) -> None:
    expected = (
        b.key.id,
        *reference.booked(b.time, "%Y-%m-%d"),
        *reference.booked(b.time, "%Y-%m"),
        reference.in_flight(),
        reference.reserved(),
    )
    assert astuple(await b.usage()) == expected


def max_in_any_window(reference: Reference, seconds: float) -> int:
    """The most requests that were admitted, and counted, in any span of time."""
    times = [each.at for each in reference.all if each.requests]
    return max(sum(start <= at < start + seconds for at in times) for start in times)


def test_a_random_sequence_goes_as_in_the_reference(url: str) -> None:
    seed = time.time_ns()
    print("seed", seed)
    generator = random.Random(seed)

    async def main() -> None:
        limits = {
            "rpm": generator.randrange(5, 40),
            "tpm": generator.randrange(500, 5000),
            "concurrency": generator.randrange(2, 15),
            "budget_day_usd": generator.randrange(5, 60),
            "budget_month_usd": generator.randrange(50, 200),
        }
        # Nights are long, and the in-process stores' reservations do not end by themselves.
        async with bench(url, lease_ttl_s=1e9, **limits) as b:
            await compare(b, generator)

    asyncio.run(main())
