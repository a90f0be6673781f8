"""Files and batches in one router process: the store, the runner, and the order in which they open and close."""

import asyncio
from pathlib import Path

from router.batches.lines import InputLimits
from router.batches.run import Submit
from router.batches.runner import BatchRunner
from router.batches.store import BatchStore


class BatchService:
    """What `create_routes` serves. `concurrency` is of requests in flight, `max_file_bytes` of one upload."""

    def __init__(
        self,
        folder: Path,
        submit: Submit,
        *,
        concurrency: int,
        max_file_bytes: int = 512 * 1024 * 1024,
        limits: InputLimits | None = None,
    ) -> None:
        self.max_file_bytes = max_file_bytes
        self.store = BatchStore(folder)
        self.runner = BatchRunner(self.store, submit, concurrency, limits=limits)

    async def open(self) -> None:
        """Raises TwinspeedError where the folder is another version's, OSError where it cannot be used."""
        await asyncio.to_thread(self.store.open)
        await self.runner.open()

    async def close(self, grace: float = 0.0) -> None:
        """Stops; requests in flight get `grace` seconds, and what does not make it is sent again later."""
        await self.runner.close(grace)
        await asyncio.to_thread(self.store.close)
