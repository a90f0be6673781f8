"""The contents of files, each under its id in one folder: whole or absent, never a part."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_PARTIAL = ".partial"
# Seconds after which what no record names is left over from a process that died.
_ORPHANED = 3600.0


class PartialFile:
    """A file being written. As a context it leaves nothing behind unless `keep` was called inside."""

    def __init__(self, final: Path) -> None:
        self.size = 0
        self._final = final
        self._partial = final.with_name(f"{final.name}{_PARTIAL}")
        self._stream = open(os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: SIM115

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self.size += len(data)

    def keep(self) -> None:
        """Puts the file in its place, durably."""
        with self._stream:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        os.replace(self._partial, self._final)
        folder = os.open(self._final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stream.close()
        except OSError:
            # A full disk may refuse what was still buffered; the file is dropped all the same.
            if kind is None:
                raise
        finally:
            self._partial.unlink(missing_ok=True)


class Blobs:
    """Blocks: to be used in threads. Ids are the router's own; a client's word never becomes a path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, is_known: Callable[[str], bool]) -> None:
        """Makes the folder, and removes what an earlier process left in it that `is_known` knows no record of."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if not is_known(path.name):
                try:
                    if path.stat().st_mtime < time.time() - _ORPHANED:
                        path.unlink()
                except FileNotFoundError:
                    # Another process sweeps, or finishes an upload, at the same time.
                    continue

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    def create(self, file_id: str) -> PartialFile:
        return PartialFile(self.path(file_id))

    def remove(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)
