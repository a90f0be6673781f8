"""One JSON line for each request, written by a thread to a file or to standard output."""

import logging
import os
import select
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from pydantic_core import to_json

from router.observe.batch import BatchThread
from router.observe.cells import Numbers
from router.record import RequestRecord
from twinspeed.errors import InputError

_CAPACITY = 16_384  # lines that wait for the thread
_CHUNK = 64  # lines written at once
_DELAY = 0.05  # seconds
_CLOSE_TIMEOUT = 5.0  # seconds that a slow disk or reader gets for the last lines

_logger = logging.getLogger(__name__)


class AccessLog:
    """The log at a path, or on standard output for `-`. Several processes may append to one file or pipe.

    `dropped` counts what found the queue full, `failed` what could not be written.
    """

    def __init__(self, path: str, dropped: Numbers, failed: Numbers) -> None:
        self._path = path
        self._dropped = dropped
        self._failed = failed
        self._file = -1
        self._reopen = False
        self._broken = False
        self._torn = False
        self._thread = BatchThread("access-log", self._write, capacity=_CAPACITY, chunk=_CHUNK, delay=_DELAY)

    def open(self) -> None:
        """Raises InputError where the file cannot be written."""
        try:
            self._open()
        except OSError as error:
            raise InputError(
                f"access_log {self._path}: cannot be written ({error.strerror}); name another file, or - for standard "
                "output."
            ) from None
        self._thread.start()

    def write(self, record: RequestRecord) -> None:
        """Returns at once. The record must not change any more."""
        if not self._thread.put(record):
            self._dropped[0] += 1.0

    def reopen(self) -> None:
        """Goes on in a new file of the same name, after the old one has been renamed."""
        self._reopen = True
        self._thread.wake()

    async def close(self) -> None:
        """Writes what waits."""
        if await self._thread.close(_CLOSE_TIMEOUT):
            os.close(self._file)
        else:
            _logger.error("access log %s: the last lines could not be written in time", self._path)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.dup(1) if self._path == "-" else os.open(self._path, flags, 0o640)
        self._file, previous = file, self._file
        self._torn = False
        # A pipe keeps together what one call writes, up to a size; lines of several processes must not mix.
        self._at_once = select.PIPE_BUF if stat.S_ISFIFO(os.fstat(file).st_mode) else 1 << 20
        if previous >= 0:
            os.close(previous)

    def _write(self, records: list[RequestRecord]) -> None:
        if self._reopen:
            self._reopen = False
            try:
                self._open()
            except OSError as error:
                _logger.error("access log %s: cannot be opened again, the old file goes on: %s", self._path, error)
        for block in _blocks(map(to_line, records), self._at_once):
            rest = block
            try:
                if self._torn:
                    os.write(self._file, b"\n")
                    self._torn = False
                while rest:
                    count = os.write(self._file, rest)
                    self._torn = not rest[:count].endswith(b"\n")
                    rest = rest[count:]
            except OSError as error:
                self._failed[0] += rest.count(b"\n")
                if not self._broken:
                    _logger.error("access log %s: requests go unlogged: %s", self._path, error)
                self._broken = True
            else:
                if self._broken:
                    _logger.warning("access log %s: requests are logged again", self._path)
                self._broken = False


def _blocks(lines: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Whole lines, joined to blocks of at most `size` bytes unless a single line is longer."""
    block: list[bytes] = []
    length = 0
    for line in lines:
        if block and length + len(line) > size:
            yield b"".join(block)
            block, length = [], 0
        block.append(line)
        length += len(line)
    if block:
        yield b"".join(block)


def to_line(record: RequestRecord) -> bytes:
    """The record as JSON. Times in seconds, `ts` in RFC 3339, money in nano-USD; what is None is left out."""
    usage = record.usage
    entry: dict[str, object] = {
        "ts": datetime.fromtimestamp(record.started_at, UTC),
        "request_id": record.request_id,
        "path": record.path,
        "status": record.status,
        "error": record.error,
        "key_id": record.key_id,
        "model": record.model,
        "variant": record.variant,
        "replica": record.replica,
        "reason": record.reason,
        "lane": record.lane,
        "tier": record.tier,
        "stream": record.stream,
        "client_left": record.client_left,
        "attempts": record.attempts,
        "queue_s": record.queue_s,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "e2e_s": record.e2e_s,
        "prompt_tokens": usage and usage.prompt,
        "cached_tokens": usage and usage.cached,
        "completion_tokens": usage and usage.completion,
        "spent_tokens": record.spent_tokens,
        "cost_nano_usd": record.cost,
        "predicted_ttft_s": record.predicted_ttft_s,
        "predicted_e2e_s": record.predicted_e2e_s,
        "predicted_cost_nano_usd": record.predicted_cost,
        "slo_ttft_s": record.slo_ttft_s,
        "slo_tpot_s": record.slo_tpot_s,
        "traceparent": record.traceparent,
    }
    return to_json({name: value for name, value in entry.items() if value is not None}) + b"\n"
