"""Jobs for processes of their own: `python -m tests.router.limits.child JOB URL SECRET ARGUMENTS`."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

from router.limits import Key, Reservation, Store, open_store


def _say(word: object) -> None:
    print(json.dumps(word), flush=True)


async def reserve_at_once(store: Store, key: Key, count: int, tokens: int, cost: int) -> None:
    """Says it is ready, waits for a line, reserves, and says how many were granted."""
    _say("ready")
    sys.stdin.readline()
    reserved = await asyncio.gather(
        *(store.reserve(key, tokens=tokens, cost=cost, now=time.monotonic()) for _ in range(count))
    )
    _say(sum(isinstance(each, Reservation) for each in reserved))


async def reserve_and_settle(store: Store, key: Key, count: int) -> None:
    """Uses 1, 2, 3 … tokens and nano-USD, in several tasks, and says the sum."""

    async def one(number: int) -> int:
        reserved = await store.reserve(key, tokens=1000, cost=1000, now=time.monotonic())
        assert isinstance(reserved, Reservation)
        await store.settle(reserved, tokens=number, cost=number)
        return number

    _say("ready")
    sys.stdin.readline()
    _say(sum(await asyncio.gather(*(one(number + 1) for number in range(count)))))


async def reserve_and_hang(store: Store, key: Key, tokens: int, cost: int) -> None:
    assert isinstance(await store.reserve(key, tokens=tokens, cost=cost, now=time.monotonic()), Reservation)
    _say("reserved")
    await asyncio.sleep(3600)


async def settle_forever(store: Store, key: Key) -> None:
    """Settles 1 nano-USD again and again, and says after each how many were, and when (monotonic)."""
    number = 0
    while True:
        reserved = await store.reserve(key, tokens=1, cost=1, now=time.monotonic())
        assert isinstance(reserved, Reservation)
        await store.settle(reserved, tokens=1, cost=1)
        number += 1
        _say([number, time.monotonic()])
        await asyncio.sleep(0.001)


async def _main(job: str, url: str, secret: str, arguments: list[int]) -> None:
    jobs: dict[str, Callable[..., Awaitable[None]]] = {
        each.__name__: each for each in (reserve_at_once, reserve_and_settle, reserve_and_hang, settle_forever)
    }
    lease_ttl_s = arguments.pop() if job == "reserve_and_hang" else 7200
    store = open_store(url, lease_ttl_s=lease_ttl_s)
    await store.open()
    key = await store.authenticate(secret)
    assert key is not None
    await jobs[job](store, key, *arguments)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])))
