"""The numbers behind the metrics: in memory, or in files that every worker process reads and one writes."""

import fcntl
import itertools
import json
import logging
import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from router.observe.families import FAMILIES, Family

# Eight-byte floats; one assignment is one store, so that a reader never sees half of it.
Numbers: TypeAlias = "memoryview[float]"

_SEGMENT = 65_536  # bytes by which a file grows; a multiple of every page size in use
_PER_SEGMENT = _SEGMENT // 8
_BY_NAME = {family.name: family for family in FAMILIES}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Series:
    """What one process counted under one set of label values. `live` is False once that process is gone."""

    family: Family
    labels: tuple[str, ...]
    values: list[float]
    live: bool


class Cells:
    """The numbers of one process, in its memory. One thread writes any one series."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, tuple[str, ...]], Numbers] = {}

    def take(self, family: Family, *labels: str) -> Numbers:
        """The `family.cells` numbers of a series, at first 0."""
        key = family.name, labels
        numbers = self._taken.get(key)
        if numbers is None:
            numbers = self._taken[key] = self._make(family, labels)
        return numbers

    def read(self) -> list[Series]:
        """All that is counted. May run in any thread."""
        taken = list(self._taken.items())
        return [Series(_BY_NAME[name], labels, list(numbers), live=True) for (name, labels), numbers in taken]

    def close(self) -> None:
        """What was counted stays readable; this process's gauges do not count any more."""

    def _make(self, family: Family, labels: tuple[str, ...]) -> Numbers:
        return memoryview(bytearray(8 * family.cells)).cast("d")


class SharedCells(Cells):
    """The numbers of one of several processes, in two files of a folder: the numbers, and where each series' stand.

    The kernel keeps what was counted, however the process ends, and a lock on the files says whether it still lives.
    A new process goes on with the files of one that is gone, so there are never more than ran at once.
    """

    def __init__(self, folder: Path) -> None:
        """Takes a place in `folder`, which exists and which only processes of the same router use."""
        super().__init__()
        self._folder = folder
        for number in itertools.count():
            path = folder / f"worker-{number}.series"
            self._index = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            if _lock(self._index, fcntl.LOCK_EX):
                break
            os.close(self._index)
        self._file = os.open(path.with_suffix(".cells"), os.O_RDWR | os.O_CREAT, 0o600)
        self._segments: list[Numbers] = []
        self._next = 0
        self._adopt(path)

    def read(self) -> list[Series]:
        return [series for path in sorted(self._folder.glob("worker-*.series")) for series in _read(path)]

    def close(self) -> None:
        os.close(self._index)
        os.close(self._file)
        # So that a late series does not go to whatever has these numbers next.
        self._index = self._file = -1

    def _adopt(self, path: Path) -> None:
        for position in range(0, os.fstat(self._file).st_size, _SEGMENT):
            self._map(position)
        index = path.read_bytes()
        # A process that was killed may have left half a line.
        os.truncate(self._index, index.rfind(b"\n") + 1)
        for family, labels, start in _entries(index):
            numbers = self._taken[family.name, labels] = self._at(start, family.cells)
            self._next = start + family.cells
            if family.kind == "gauge":
                numbers[0], numbers[1] = math.nan, 0.0

    def _make(self, family: Family, labels: tuple[str, ...]) -> Numbers:
        try:
            start = self._next
            if start % _PER_SEGMENT + family.cells > _PER_SEGMENT or start == len(self._segments) * _PER_SEGMENT:
                start = len(self._segments) * _PER_SEGMENT
                # Room on the disk, or an error now: a page that finds none later kills the process.
                os.posix_fallocate(self._file, start * 8, _SEGMENT)
                self._map(start * 8)
            os.write(self._index, json.dumps([family.name, labels, start]).encode() + b"\n")
        except OSError as error:
            _logger.error(
                "%s: the other workers do not see one more series of %s: %s", self._folder, family.name, error
            )
            return super()._make(family, labels)
        self._next = start + family.cells
        return self._at(start, family.cells)

    def _map(self, position: int) -> None:
        self._segments.append(memoryview(mmap.mmap(self._file, _SEGMENT, offset=position)).cast("d"))

    def _at(self, start: int, count: int) -> Numbers:
        segment, offset = divmod(start, _PER_SEGMENT)
        return self._segments[segment][offset : offset + count]


def _entries(index: bytes) -> Iterator[tuple[Family, tuple[str, ...], int]]:
    for line in index[: index.rfind(b"\n") + 1].splitlines():
        name, labels, start = json.loads(line)
        yield _BY_NAME[name], tuple(labels), start


def _read(path: Path) -> Iterator[Series]:
    """The series of one worker, this process or another, dead or alive."""
    with path.open("rb") as stream:
        live = not _lock(stream.fileno(), fcntl.LOCK_SH)
        index = stream.read()
    if not index:
        return
    with (
        path.with_suffix(".cells").open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
        view.cast("d") as numbers,
    ):
        for family, labels, start in _entries(index):
            with numbers[start : start + family.cells] as part:
                yield Series(family, labels, list(part), live)


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
