"""What a discovery does, and the simplest: replicas that the settings list."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol


class Discovery(Protocol):
    """Finds the replicas of one variant."""

    async def run(self, update: Callable[[frozenset[str]], None]) -> None:
        """Until cancelled, call `update` with all replicas' root URLs: once they are known, then whenever they change.

        A URL that is gone from the set is to get no new request, while those it has may end: its pod is going, or says
        that it is not ready. One that comes back before it has drained is the same replica.
        """
        ...


class StaticReplicas:
    """Replicas that stay as they are."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = frozenset(urls)

    async def run(self, update: Callable[[frozenset[str]], None]) -> None:
        """As `Discovery.run`; calls `update` once."""
        update(self._urls)
        await asyncio.Event().wait()
