"""A process that runs the batches in a folder until it is killed: `python -m … FOLDER LOG SEED LEASE`.

It appends a line `PID TAG` to LOG for each request that it sends. Which requests fail is the seed's matter alone.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from router.batches import BatchRunner, BatchStore

CONCURRENCY = 16


def fails(seed: str, tag: int) -> bool:
    return random.Random(f"{seed}-{tag}").random() < 0.1


async def main(folder: Path, log: Path, seed: str, lease: float) -> None:
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def submit(
        endpoint: str, body: bytes, owner: str | None, request_id: str
    ) -> tuple[int, dict[str, str], bytes]:
        tag = json.loads(body)["tag"]
        os.write(written, f"{os.getpid()} {tag}\n".encode())
        await asyncio.sleep(random.random() * 0.02)
        if random.random() < 0.02:
            return 503, {"retry-after": "0"}, b""
        return 500 if fails(seed, tag) else 200, {}, json.dumps({"tag": tag}).encode()

    store = BatchStore(folder)
    store.open()
    await BatchRunner(store, submit, CONCURRENCY, lease=lease, poll=0.1).open()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
