"""What every store does alike."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
import redis

from router.limits import KeySettings, KeyUsage, Reservation
from tests.router.limits.bench import NOON, Bench, bench, opened

pytestmark = pytest.mark.unit

MIDNIGHT = NOON + 12 * 3600


def run(url: str, test: Callable[[Bench], Coroutine[Any, Any, None]], **limits: Any) -> None:
    async def main() -> None:
        async with bench(url, **limits) as b:
            await test(b)

    asyncio.run(main())


def used(usage: KeyUsage) -> tuple[int, ...]:
    """Of the day and the month each: cost, tokens, requests; then in flight, and reserved."""
    return (
        *(usage.day_cost, usage.day_tokens, usage.day_requests),
        *(usage.month_cost, usage.month_tokens, usage.month_requests),
        *(usage.in_flight, usage.reserved_cost),
    )


def test_a_key_is_known_by_its_secret_until_it_is_revoked(url: str) -> None:
    async def test(b: Bench) -> None:
        other, other_secret = await b.store.create_key(KeySettings(name="other", rpm=7, models=("m",)))
        assert await b.store.authenticate(b.secret) == b.key
        assert await b.store.authenticate(other_secret) == other
        flipped = b.secret[:-1] + ("A" if b.secret[-1] != "A" else "B")
        for wrong in ("", "sk-ts-", flipped, b.secret + "A", b.secret[:-1], "é" * 49, "x" * 100_000):
            assert await b.store.authenticate(wrong) is None
        assert [key for key in await b.store.list_keys() if key in (b.key, other)] == [b.key, other]
        assert await b.store.revoke_key(b.key.id)
        assert await b.store.authenticate(b.secret) is None
        assert await b.store.authenticate(other_secret) == other
        listed = await b.store.list_keys()
        assert other in listed
        assert b.key not in listed
        assert not await b.store.revoke_key(b.key.id)
        assert not await b.store.revoke_key("key_000000000000")

    run(url, test)


def test_what_was_used_can_be_read_of_revoked_keys_and_of_no_other(url: str) -> None:
    async def test(b: Bench) -> None:
        held = await b.reserve(10, 10)
        await b.store.revoke_key(b.key.id)
        await b.settle(held, 4, 3)
        assert used(await b.usage()) == (3, 4, 1, 3, 4, 1, 0, 0)
        assert await b.store.usage("key_000000000000") is None

    run(url, test)


def test_keys_and_what_they_used_outlive_the_store(url: str) -> None:
    if url == "memory:":
        return

    async def main() -> None:
        async with bench(url, rpm=3, models=("m", "n:fast"), budget_day_usd=0.5, lanes=("rollout",)) as b:
            await b.settle(await b.reserve(10, 10), 4, 3)
            _, gone = await b.store.create_key(KeySettings(name="gone"))
            assert await b.store.authenticate(gone) is not None
            for key in await b.store.list_keys():
                if key.settings.name == "gone":
                    await b.store.revoke_key(key.id)
        async with opened(url) as store:
            again = Bench(store, b.key, b.secret)
            assert await store.authenticate(b.secret) == b.key
            assert await store.authenticate(gone) is None
            assert b.key in await store.list_keys()
            assert used(await again.usage()) == (3, 4, 1, 3, 4, 1, 0, 0)

    asyncio.run(main())


def test_no_store_holds_a_secret(url: str) -> None:
    async def test(b: Bench) -> None:
        await b.store.authenticate(b.secret)
        if url.startswith("redis"):
            with redis.Redis.from_url(url) as client:
                content = repr([client.hgetall(name) for name in client.keys("*") if client.type(name) == b"hash"])
        elif url.startswith("postgresql"):
            connection = await asyncpg.connect(url)
            content = repr(await connection.fetch("SELECT * FROM twinspeed_keys"))
            await connection.close()
        elif url.startswith("sqlite"):
            connection = sqlite3.connect(url.removeprefix("sqlite:///"))
            content = "\n".join(connection.iterdump())
            connection.close()
        else:
            content = b.key.id + repr(vars(b.store))
        assert b.key.id in content
        assert b.secret.removeprefix("sk-ts-") not in content

    run(url, test)


def test_requests_are_limited_and_a_refused_one_uses_nothing(url: str) -> None:
    async def test(b: Bench) -> None:
        for left in (2, 1, 0):
            held = await b.reserve(5, 7)
            assert (held.remaining_requests, held.limit_requests) == (left, 3)
            assert (held.remaining_tokens, held.limit_tokens) == (1000 - (3 - left) * 5, 1000)
        before = await b.usage()
        for _ in range(5):
            refused = await b.refused(5, 7)
            assert refused.code == "rate_limit_requests"
            assert "3 requests per minute" in refused.message
        assert await b.usage() == before
        assert used(before)[-2:] == (3, 21)
        b.advance(61)
        assert (await b.reserve(5)).remaining_tokens == 995

    run(url, test, rpm=3, tpm=1000, concurrency=10, budget_day_usd=1)


def test_each_refusal_uses_nothing(url: str) -> None:
    async def test(b: Bench) -> None:
        await b.reserve(100, 600)
        assert (await b.refused(901, 1)).code == "rate_limit_tokens"
        assert (await b.refused(1, 1_000_000_000)).code == "budget_day_exceeded"
        held = await b.reserve(100, 600)
        assert (held.remaining_requests, held.remaining_tokens) == (8, 800)
        assert (await b.refused(1, 1)).code == "concurrency_limit"
        await b.cancel(held)
        held = await b.reserve(900, 999_999_400)
        assert (held.remaining_requests, held.remaining_tokens) == (8, 0)

    run(url, test, rpm=10, tpm=1000, concurrency=2, budget_day_usd=1)


def test_what_was_used_comes_back_when_its_second_has_left_the_window(url: str) -> None:
    async def test(b: Bench) -> None:
        b.advance(0.5)
        first = await b.reserve()
        assert first.reset_s == pytest.approx(60.5)
        b.advance(10)
        assert (await b.reserve()).reset_s == pytest.approx(50.5)
        b.advance(10)
        refused = await b.refused()
        assert refused.retry_after_s == pytest.approx(40.5)
        b.advance(40.25)
        assert (await b.refused()).retry_after_s == pytest.approx(0.25)
        b.advance(0.25)
        assert (await b.reserve()).remaining_requests == 0
        assert (await b.refused()).retry_after_s == pytest.approx(10)

    run(url, test, rpm=2)


def test_tokens_are_limited_and_settled_by_what_was_used(url: str) -> None:
    async def test(b: Bench) -> None:
        held = await b.reserve(80)
        assert (await b.refused(30)).retry_after_s == pytest.approx(61)
        b.advance(5)
        await b.settle(held, 50)
        other = await b.reserve(50)
        assert other.remaining_tokens == 0
        await b.settle(other, 70)
        refused = await b.refused(1)
        assert refused.code == "rate_limit_tokens"
        # 120 are in use: 1 more fits once the 50 of the first second have gone.
        assert refused.retry_after_s == pytest.approx(56)
        assert (await b.refused(40)).retry_after_s == pytest.approx(61)
        b.advance(56)
        assert (await b.reserve(30)).remaining_tokens == 0

    run(url, test, tpm=100)


def test_tokens_that_have_left_the_window_are_not_given_back_into_it(url: str) -> None:
    async def test(b: Bench) -> None:
        held = await b.reserve(100)
        b.advance(61)
        other = await b.reserve(100)
        await b.settle(held, 0)
        assert (await b.refused(1)).code == "rate_limit_tokens"
        b.advance(3600)
        await b.settle(other, 500)
        assert (await b.reserve(100)).remaining_tokens == 0

    run(url, test, tpm=100)


def test_a_request_beyond_the_limit_of_tokens_is_told_so(url: str) -> None:
    async def test(b: Bench) -> None:
        refused = await b.refused(101)
        assert refused.code == "rate_limit_tokens"
        assert "101 tokens" in refused.message
        assert refused.retry_after_s == pytest.approx(60)

    run(url, test, tpm=100)


def test_requests_under_way_are_limited(url: str) -> None:
    async def test(b: Bench) -> None:
        held = [await b.reserve() for _ in range(2)]
        refused = await b.refused()
        assert (refused.code, refused.retry_after_s) == ("concurrency_limit", 1)
        await b.settle(held[0])
        held.append(await b.reserve())
        assert (await b.refused()).code == "concurrency_limit"
        await b.cancel(held[1])
        await b.reserve()
        assert (await b.refused()).code == "concurrency_limit"

    run(url, test, concurrency=2)


def test_a_reservation_ends_once(url: str) -> None:
    async def test(b: Bench) -> None:
        held = await b.reserve(10, 10)
        await b.settle(held, 5, 5)
        after = await b.usage()
        await b.settle(held, 7, 7)
        await b.cancel(held)
        assert await b.usage() == after
        other = await b.reserve(10, 10)
        await b.cancel(other)
        await b.cancel(other)
        await b.settle(other, 7, 7)
        assert await b.usage() == after
        last = await b.reserve(10, 10)
        assert (last.remaining_requests, last.remaining_tokens) == (98, 85)
        assert used(await b.usage()) == (5, 5, 1, 5, 5, 1, 1, 10)

    run(url, test, rpm=100, tpm=100)


def test_a_cancelled_request_counts_only_where_it_is_said_to(url: str) -> None:
    async def test(b: Bench) -> None:
        await b.cancel(await b.reserve(50, 50))
        assert used(await b.usage()) == (0,) * 8
        held = await b.reserve(50, 50)
        assert (held.remaining_requests, held.remaining_tokens) == (1, 50)
        await b.cancel(held, count_request=True)
        assert used(await b.usage()) == (0, 0, 1, 0, 0, 1, 0, 0)
        held = await b.reserve(50, 50)
        assert (held.remaining_requests, held.remaining_tokens) == (0, 50)

    run(url, test, rpm=2, tpm=100, budget_day_usd=1)


def test_a_budget_covers_what_was_settled_and_what_is_reserved(url: str) -> None:
    async def test(b: Bench) -> None:
        held = await b.reserve(cost=60)
        refused = await b.refused(cost=41)
        # Nothing is spent yet, so that there may be room as soon as the other request ends.
        assert (refused.code, refused.retry_after_s) == ("budget_day_exceeded", 1)
        other = await b.reserve(cost=40)
        await b.settle(held, cost=59)
        await b.settle(other, cost=40)
        assert (await b.refused(cost=2)).retry_after_s == pytest.approx(12 * 3600)
        await b.settle(await b.reserve(cost=1), cost=3)
        refused = await b.refused()
        assert refused.code == "budget_day_exceeded"
        assert "0.0000001 USD a day" in refused.message

    run(url, test, budget_day_usd=100e-9)


def test_budgets_are_of_calendar_days_and_months_in_utc(url: str) -> None:
    async def test(b: Bench) -> None:
        b.set_time(MIDNIGHT - 0.25)
        await b.settle(await b.reserve(cost=100), cost=100)
        assert (await b.refused(cost=1)).retry_after_s == pytest.approx(0.25)
        b.set_time(MIDNIGHT)
        # 31 March: the day's budget is whole again, and 50 of the month's 150 are left.
        assert (await b.refused(cost=51)).code == "budget_month_exceeded"
        assert (await b.refused(cost=51)).retry_after_s == pytest.approx(86_400)
        b.set_time(MIDNIGHT + 86_399)
        late = await b.reserve(cost=50)
        b.set_time(MIDNIGHT + 86_400)
        assert used(await b.usage()) == (0, 0, 0, 0, 0, 0, 1, 50)
        await b.settle(late, 9, 50)
        assert used(await b.usage()) == (50, 9, 1, 50, 9, 1, 0, 0)
        assert (await b.refused(cost=51)).code == "budget_day_exceeded"
        b.set_time(datetime(2027, 1, 1, tzinfo=UTC).timestamp())
        await b.reserve(cost=100)

    run(url, test, budget_day_usd=100e-9, budget_month_usd=150e-9)


@pytest.mark.parametrize(
    ("last", "days"), [((2028, 2, 29), 366), ((2027, 2, 28), 366), ((2026, 12, 31), 366), ((2100, 2, 28), 60)]
)
def test_months_end_when_they_do(url: str, last: tuple[int, int, int], days: int) -> None:
    async def test(b: Bench) -> None:
        end = datetime(*last, tzinfo=UTC).timestamp() + 86_400
        b.set_time(end - 86_400.5)
        await b.settle(await b.reserve(cost=1), cost=1)
        b.set_time(end - 0.5)
        assert used(await b.usage())[:6] == (0, 0, 0, 1, 0, 1)
        assert (await b.refused(cost=1)).retry_after_s == pytest.approx(0.5)
        b.set_time(end)
        assert used(await b.usage())[:6] == (0, 0, 0, 0, 0, 0)
        await b.settle(await b.reserve(cost=1), cost=1)
        b.advance(days * 86_400)
        assert used(await b.usage())[:6] == (0,) * 6

    run(url, test, budget_month_usd=1e-9)


def test_a_clock_that_is_set_back_over_midnight_forgets_nothing(url: str) -> None:
    async def test(b: Bench) -> None:
        b.set_time(MIDNIGHT + 1)
        await b.settle(await b.reserve(cost=100), cost=100)
        b.set_time(MIDNIGHT - 1)
        assert (await b.refused(cost=1)).code == "budget_day_exceeded"
        b.set_time(MIDNIGHT + 2)
        assert used(await b.usage())[0] == 100

    run(url, test, budget_day_usd=100e-9)


def test_the_refusal_with_the_longest_wait_is_told(url: str) -> None:
    async def test(b: Bench) -> None:
        await b.settle(await b.reserve(10, 10), 10, 10)
        await b.reserve()
        codes = [
            (await b.refused(cost=1)).code,
            (await b.refused(tokens=1)).code,
        ]
        assert codes == ["budget_month_exceeded", "rate_limit_requests"]

    run(url, test, rpm=2, tpm=10, concurrency=1, budget_day_usd=10e-9, budget_month_usd=10e-9)


def test_a_key_without_limits_gets_everything_and_is_counted(url: str) -> None:
    async def test(b: Bench) -> None:
        held = await b.reserve(10**12, 10**15)
        limits = (held.limit_requests, held.remaining_requests, held.limit_tokens, held.remaining_tokens, held.reset_s)
        assert limits == (None,) * 5
        assert (held.key_id, held.tokens, held.cost) == (b.key.id, 10**12, 10**15)
        await b.settle(held, 2, 3)
        assert used(await b.usage()) == (3, 2, 1, 3, 2, 1, 0, 0)

    run(url, test)


def test_money_adds_up_to_the_nano_usd_beyond_what_a_double_holds(url: str) -> None:
    async def test(b: Bench) -> None:
        large = 2**53 + 1
        held = [await b.reserve(1, large), await b.reserve(1, large)]
        assert (await b.usage()).reserved_cost == 2 * large
        await b.settle(held[0], 1, large)
        await b.settle(held[1], 1, 1)
        assert used(await b.usage())[0] == large + 1

    run(url, test)


def test_a_request_without_a_price_is_limited_as_any_other(url: str) -> None:
    async def test(b: Bench) -> None:
        held = [await b.reserve(50), await b.reserve(50)]
        assert (await b.refused(1)).code == "rate_limit_tokens"
        for each in held:
            await b.settle(each, 50)
        assert used(await b.usage()) == (0, 100, 2, 0, 100, 2, 0, 0)

    run(url, test, tpm=100, budget_day_usd=0)


def test_every_reservation_has_an_id_of_its_own(url: str) -> None:
    async def test(b: Bench) -> None:
        assert len({(await b.reserve()).id for _ in range(50)}) == 50
        assert isinstance(await b.try_reserve(), Reservation)

    run(url, test)
