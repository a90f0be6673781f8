"""How long the mock engine's batch takes: who waits for whom, and how load makes each slower."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loadtests.mock.batch import Batch, Pace, PrefixCache

pytestmark = pytest.mark.unit


async def timed(work: Awaitable[Any]) -> float:
    began = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - began


async def turns(count: int = 5) -> None:
    """Lets every other task go as far as it can."""
    for _ in range(count):
        await asyncio.sleep(0)


def waiting(batch: Batch) -> str:
    return next(line for line in batch.metrics("m").decode().splitlines() if line.startswith("vllm:num_requests_wai"))


def test_requests_beyond_the_limit_wait_in_their_order() -> None:
    async def scenario() -> None:
        batch, order = Batch(Pace(max_num_seqs=1)), []

        async def request(name: str) -> None:
            await batch.enter(10)
            order.append(name)

        await request("first")
        tasks = [asyncio.create_task(request(name)) for name in ("second", "third", "fourth")]
        await turns()
        assert order == ["first"]
        assert waiting(batch).endswith(" 3.0")
        # Who leaves the queue is passed over.
        tasks[0].cancel()
        await turns()
        assert (batch.running, batch.held_tokens) == (1, 10)
        for expected in (["first", "third"], ["first", "third", "fourth"]):
            batch.leave(10)
            await turns()
            assert order == expected
        batch.leave(10)
        assert (batch.running, batch.held_tokens) == (0, 0)

    asyncio.run(scenario())


def test_a_place_given_to_one_who_leaves_at_that_moment_is_not_lost() -> None:
    async def scenario() -> None:
        batch = Batch(Pace(max_num_seqs=1))
        await batch.enter(1)
        leaver = asyncio.create_task(batch.enter(1))
        await turns()
        batch.leave(1)
        leaver.cancel()
        await turns()
        assert batch.running == 0
        await asyncio.wait_for(batch.enter(1), 1)

    asyncio.run(scenario())


def test_a_step_takes_longer_the_more_run_and_moves_all_at_once() -> None:
    async def scenario() -> None:
        batch = Batch(Pace(itl=0.01, itl_per_seq=0.02))
        await batch.enter(1)
        assert 0.03 <= await timed(batch.step()) < 0.09
        for _ in range(4):
            await batch.enter(1)
        # One step for all five, not one each.
        assert 0.11 <= await timed(asyncio.gather(*(batch.step() for _ in range(5)))) < 0.3

    asyncio.run(scenario())


def test_a_step_begins_anew_after_all_have_left_it() -> None:
    async def scenario() -> None:
        batch = Batch(Pace(itl=0.05))
        leaver = asyncio.create_task(batch.step())
        await asyncio.sleep(0.03)
        leaver.cancel()
        await turns()
        assert await timed(batch.step()) >= 0.05

    asyncio.run(scenario())


def test_prompts_are_processed_one_after_another_but_for_what_is_cached() -> None:
    async def scenario() -> None:
        batch = Batch(Pace(ttft=0.01, prefill_tokens_per_s=1000))
        both = asyncio.gather(timed(batch.prefill(40)), timed(batch.prefill(40)))
        first, second = await both
        assert first >= 0.05
        assert second >= 0.09
        assert await timed(batch.prefill(1000, cached=992)) < 0.5
        assert batch.prompt_tokens == 1080

    asyncio.run(scenario())


def test_old_prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.mock.batch._BLOCKS", 4)
    cache = PrefixCache()
    first, second = (tuple(f"{name}{number}" for number in range(33)) for name in "ab")
    assert (cache.add(first, ""), cache.add(first, "")) == (0, 32)
    cache.add(second, "")
    assert cache.add(first, "") == 32
    cache.add(tuple("c" * 64), "")
    assert cache.add(first, "") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_takes_a_step_for_each_token_after_the_first(serve: Callable[..., Any], stream: bool) -> None:
    engine = serve(ttft=0.05, itl=0.02)

    async def ask() -> float:
        return await timed(asyncio.to_thread(engine.chat, max_tokens=6, stream=stream))

    assert asyncio.run(ask()) >= 0.05 + 5 * 0.02


def test_an_engine_can_start_again_in_another_event_loop() -> None:
    async def leave_steps_and_a_queue(batch: Batch) -> None:
        await batch.enter(1)
        for work in (batch.step(), batch.enter(1)):
            asyncio.create_task(work)  # noqa: RUF006
        await turns()

    batch = Batch(Pace(itl=0.01, max_num_seqs=1))
    asyncio.run(leave_steps_and_a_queue(batch))
    batch.leave(1)

    async def go_on() -> None:
        await asyncio.wait_for(batch.enter(1), 1)
        await asyncio.wait_for(batch.step(), 1)

    asyncio.run(go_on())
