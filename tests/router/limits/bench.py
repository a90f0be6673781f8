"""A store that is used at times that the test sets, and by several processes."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from router.limits import Key, KeySettings, KeyUsage, Refusal, Reservation, Store, open_store

NOON = datetime(2026, 3, 30, 12, 0, tzinfo=UTC).timestamp()
ROOT = Path(__file__).parents[3]


class Bench:
    """One key of an open store, and the time."""

    def __init__(self, store: Store, key: Key, secret: str) -> None:
        self.store = store
        self.key = key
        self.secret = secret
        self.set_time(NOON)

    def set_time(self, seconds: float) -> None:
        self.time = seconds
        self.store.fixed_time = seconds  # type: ignore[attr-defined]

    def advance(self, seconds: float) -> None:
        self.set_time(self.time + seconds)

    async def try_reserve(self, tokens: int = 0, cost: int = 0) -> Reservation | Refusal:
        return await self.store.reserve(self.key, tokens=tokens, cost=cost, now=self.time)

    async def reserve(self, tokens: int = 0, cost: int = 0) -> Reservation:
        reserved = await self.try_reserve(tokens, cost)
        assert isinstance(reserved, Reservation), reserved
        return reserved

    async def refused(self, tokens: int = 0, cost: int = 0) -> Refusal:
        answer = await self.try_reserve(tokens, cost)
        assert isinstance(answer, Refusal), answer
        return answer

    async def settle(self, reservation: Reservation, tokens: int = 0, cost: int = 0) -> None:
        await self.store.settle(reservation, tokens=tokens, cost=cost)

    async def cancel(self, reservation: Reservation, *, count_request: bool = False) -> None:
        await self.store.cancel(reservation, count_request=count_request)

    async def usage(self) -> KeyUsage:
        usage = await self.store.usage(self.key.id)
        assert usage is not None
        return usage


@asynccontextmanager
async def opened(url: str, **options: float) -> AsyncIterator[Store]:
    store = open_store(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def bench(url: str, *, lease_ttl_s: float = 7200.0, **limits: Any) -> AsyncIterator[Bench]:
    async with opened(url, lease_ttl_s=lease_ttl_s) as store:
        key, secret = await store.create_key(KeySettings(name="tester", **limits))
        yield Bench(store, key, secret)


def start_child(job: str, url: str, secret: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that does one of the jobs in `child.py` with a key, as another router would."""
    command = [sys.executable, "-m", "tests.router.limits.child", job, url, secret, json.dumps(arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, "it never came true"
