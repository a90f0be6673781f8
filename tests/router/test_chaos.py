"""The router's command in a storm: engines die, hang and lie, clients vanish, settings change; and nothing is lost."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.limits.remote import CONNECTIONS
from tests.router.chaos import engines as mocks, router as routers
from tests.router.chaos.books import attempt_faults, log_faults, sum_faults
from tests.router.chaos.router import RouterProcess
from tests.router.chaos.shapes import VARIANTS
from tests.router.chaos.storm import Storm
from tests.router.chaos.verdict import Verdict
from tests.services import redis_server

pytestmark = pytest.mark.unit

_CALM = 200
# Seconds within which what was held is given back; engines close idle connections after 5 s.
_QUIET_S = 10.0
_MORE_FILES = 4
_MORE_MEGABYTES = 40
# A request that an engine hangs on is not sent again.
_AVOIDABLE_SHARE = 0.05


async def weather(folder: Path, *, requests: int, seconds: float, state: str | None = None, workers: int = 1) -> None:
    seed = int(os.environ.get("TWINSPEED_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    print(f"TWINSPEED_CHAOS_SEED={seed}")
    async with (
        mocks.running("standard", "standard", "fast", "fast") as engines,
        routers.running(folder, engines, state=state, workers=workers) as router,
    ):
        storm = Storm(random.Random(seed), router, engines)
        async with mocks.running(*VARIANTS, pace=()) as undisturbed:
            await storm.prepare({engine.variant: engine.port for engine in undisturbed})
        pids, files = router.pids(), router.files()
        await storm.calm(_CALM // 4)
        megabytes = router.megabytes()
        began = time.monotonic()
        await storm.rage(requests, seconds)
        print(f"{len(storm.seen)} requests in {time.monotonic() - began:.0f} s, settings: {storm.settings}")
        await router.until_ready()
        calm = await storm.calm(_CALM)

        verdict = Verdict(engines)
        for each in storm.seen.values():
            verdict.judge(each)
        print(f"outcomes: {dict(verdict.outcomes)}")
        print(
            f"of {verdict.servable} that a healthy replica could have served, these failed: {dict(verdict.avoidable)}"
        )
        assert not verdict.faults, "\n".join(verdict.faults[:20])
        assert {each.name for each in calm} <= verdict.complete
        assert verdict.avoidable.total() <= _AVOIDABLE_SHARE * verdict.servable, verdict.avoidable
        assert router.pids() == pids

        key_ids = [key_id for key_id, _ in storm.keys.values() if key_id]
        assert await _becomes(lambda: _held(router, key_ids), 0)
        print(f"memory: {megabytes:.0f} MB, then {router.megabytes():.0f} MB")
        assert router.megabytes() < megabytes + _MORE_MEGABYTES * workers
        shared = 0 if state is None else CONNECTIONS
        most = files + (_MORE_FILES + shared) * workers
        assert await _becomes(lambda: _files_above(router, most), 0), f"{files} open files, then {router.files()}"
        usage = {key_id: await router.usage(key_id) for key_id in key_ids}
        sent = await router.metric("twinspeed_router_overhead_seconds_count")
        assert await router.metric("twinspeed_router_access_log_dropped_total") == 0

    entries = list(router.entries())
    faults = log_faults(entries, storm.seen, verdict.complete)
    faults += sum_faults(entries, usage, sent)
    faults += attempt_faults(entries, storm.seen, engines)
    assert not faults, "\n".join(faults[:20])
    errors = router.errors.read_text()
    assert "Traceback" not in errors, errors[errors.index("Traceback") - 500 :][:3000]
    assert " was never " not in errors


async def _held(router: RouterProcess, key_ids: list[str]) -> float:
    """All that requests hold of the router, together."""
    held: float = sum([await router.metric(f"twinspeed_router_{name}") for name in ("in_flight", "queued")])
    held += sum(replica["in_flight"] for replica in (await router.admin("GET", "/replicas"))["data"])
    for key_id in key_ids:
        used = await router.usage(key_id)
        held += used["in_flight"] + used["reserved_cost"]
    return held


async def _files_above(router: RouterProcess, limit: int) -> float:
    return max(0, router.files() - limit)


async def _becomes(figure: Callable[[], Awaitable[float]], wanted: float) -> bool:
    deadline = time.monotonic() + _QUIET_S
    while time.monotonic() < deadline:
        if await figure() == wanted:
            return True
        await asyncio.sleep(0.2)
    return False


def test_a_storm_loses_nothing(tmp_path: Path) -> None:
    asyncio.run(weather(tmp_path, requests=24_000, seconds=70))


def test_a_storm_loses_nothing_with_two_workers_that_share_limits(tmp_path: Path) -> None:
    with redis_server() as url:
        asyncio.run(weather(tmp_path, requests=4_000, seconds=20, state=url, workers=2))
