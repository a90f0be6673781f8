"""One batch, from the state it was found in to its end: each step begins and ends with what is on disk."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from router.batches.lines import InputLimits, RequestLine, parse_line, read_lines, validate
from router.batches.outputs import answer_line, error_line, finish
from router.batches.pace import Pace, in_thread
from router.batches.progress import Ending, Progress
from router.batches.recorder import Recorder
from router.batches.records import BatchRecord, LineError, LineResult

Submit = Callable[[str, bytes, str | None, str], Awaitable[tuple[int, dict[str, str], bytes]]]
"""`submit(endpoint, body, owner, request_id)` → status, headers with lower-case names, body."""

# Statuses that say "not now": the request is sent again until the completion window ends.
_LATER = (429, 503)
_FIRST_REST = 1.0
_LONGEST_REST = 60.0
# What is read ahead of the requests in flight.
_AHEAD_LINES = 16
_AHEAD_BYTES = 1024 * 1024

_logger = logging.getLogger(__name__)


class NotFinishedError(Exception):
    """The run has to end before the batch has: its runner is closing, or may not hold the batch any more."""


@dataclass(slots=True)
class Lease:
    """Until when, by the monotonic clock, the runner's claims stand."""

    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Means:
    """What a runner's runs share. `window` bounds the lines that one of them holds, `slots` the requests in flight."""

    progress: Progress
    submit: Submit
    window: int
    slots: asyncio.Semaphore
    limits: InputLimits
    executor: Executor
    lease: Lease
    closing: asyncio.Event


async def run_batch(batch: BatchRecord, means: Means) -> None:
    """Brings a claimed batch to its end.

    May be cancelled at any time; another run then goes on from what is on disk.

    Raises:
        ClaimLostError, NotFinishedError: the batch has not ended, and this run may not go on.
    """
    if batch.status == "validating":
        batch = await in_thread(means.executor, lambda pace: _validate(batch, means, pace))
    if batch.status == "in_progress":
        left = batch.expires_at - time.time()
        try:
            async with asyncio.timeout(max(left, 0)) as window:
                await _send_all(batch, means)
        except TimeoutError:
            if not window.expired():
                raise
            await _finish(batch, "expired", means)
            return
        batch = await asyncio.to_thread(means.progress.finalize, batch)
    if batch.status == "finalizing":
        await _finish(batch, "completed", means)
    elif batch.status == "cancelling":
        await _finish(batch, "cancelled", means)


async def _finish(batch: BatchRecord, ending: Ending, means: Means) -> None:
    await in_thread(means.executor, lambda pace: finish(means.progress, batch, ending, pace))


def _validate(batch: BatchRecord, means: Means, pace: Pace) -> BatchRecord:
    try:
        with means.progress.blobs.path(batch.input_file_id).open("rb") as stream:
            total, errors = validate(stream, batch.endpoint, means.limits, pace)
    except FileNotFoundError:
        total, errors = 0, [LineError("file_not_found", f"The content of {batch.input_file_id} is gone.")]
    return means.progress.refuse(batch, errors) if errors else means.progress.begin(batch, total)


async def _send_all(batch: BatchRecord, means: Means) -> None:
    """Returns when every request has a durable result, or the runner closes and none is in flight."""
    answered = await asyncio.to_thread(means.progress.answered_lines, batch)
    stream = await asyncio.to_thread(means.progress.blobs.path(batch.input_file_id).open, "rb")
    window = asyncio.Semaphore(means.window)
    with stream:
        ahead = _Ahead(stream, batch, answered)
        async with Recorder(means.progress, batch) as recorder:
            try:
                async with asyncio.TaskGroup() as sending:
                    while lines := await in_thread(None, ahead.take):
                        for line in lines:
                            await window.acquire()
                            if means.closing.is_set():
                                return
                            sent = sending.create_task(_send(line, batch, means, recorder))
                            sent.add_done_callback(lambda _: window.release())
            except ExceptionGroup as group:
                raise group.exceptions[0] from None


class _Ahead:
    """Reads requests that have no result yet."""

    def __init__(self, stream: BinaryIO, batch: BatchRecord, answered: frozenset[int]) -> None:
        self._lines = read_lines(stream)
        self._endpoint = batch.endpoint
        self._answered = answered

    def take(self, pace: Pace) -> list[RequestLine]:
        """The next few; none at the end. Blocks."""
        taken: list[RequestLine] = []
        size = 0
        for number, line in self._lines:
            pace.step()
            if number in self._answered or line is None:
                continue
            request = parse_line(number, line, self._endpoint)
            taken.append(request)
            size += len(request.body)
            if len(taken) == _AHEAD_LINES or size >= _AHEAD_BYTES:
                break
        return taken


async def _send(line: RequestLine, batch: BatchRecord, means: Means, recorder: Recorder) -> None:
    """Sends one request until it is answered, and records the answer; does neither once the runner closes."""
    request_id = secrets.token_hex(16)
    rest = _FIRST_REST
    while True:
        async with means.slots:
            if means.closing.is_set():
                return
            if time.monotonic() >= means.lease.until:
                raise NotFinishedError
            try:
                status, headers, body = await means.submit(batch.endpoint, line.body, batch.owner, request_id)
            except Exception:
                # A fault of the router's own: it costs this request, not the batch.
                _logger.exception("Line %d of %s could not be sent.", line.number, batch.id)
                await recorder.record(partial(_failure, line))
                return
        if status not in _LATER:
            await recorder.record(partial(_answer, line, request_id, status, body))
            return
        # With jitter, so that those who were refused together do not come back together.
        try:
            async with asyncio.timeout(_retry_after(headers) + rest * random.random()):
                await means.closing.wait()
        except TimeoutError:
            rest = min(rest * 2, _LONGEST_REST)


def _answer(line: RequestLine, request_id: str, status: int, body: bytes) -> LineResult:
    return LineResult(line.number, not 200 <= status < 300, answer_line(line.custom_id, request_id, status, body))


def _failure(line: RequestLine) -> LineResult:
    output = error_line(line.custom_id, "internal_server_error", "The router failed on this request.")
    return LineResult(line.number, True, output)


def _retry_after(headers: dict[str, str]) -> float:
    """Seconds; 0 where none are given."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return 0.0
