"""Replicas from the settings stay as they are."""

import asyncio

import pytest

from router.discovery import StaticReplicas

pytestmark = pytest.mark.unit


def test_tells_once_and_runs_until_cancelled() -> None:
    async def scenario() -> None:
        told: list[frozenset[str]] = []
        task = asyncio.create_task(StaticReplicas(["http://a:1", "http://b:1"]).run(told.append))
        await asyncio.sleep(0.05)
        assert told == [{"http://a:1", "http://b:1"}]
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
