"""Folders and files on disk: hashes, atomic writes, and room checks."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from twinspeed import paths
from twinspeed.errors import InputError


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read from disk in full."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_cached(path: Path) -> str:
    """Like `sha256_file`, but a file whose size and mtime have not changed since it was hashed is not read again."""
    resolved = path.resolve()
    stat = resolved.stat()
    seen = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    entry = paths.hashes() / hashlib.sha256(os.fsencode(resolved)).hexdigest()
    try:
        cached = json.loads(entry.read_text())
        if cached["seen"] == seen:
            return str(cached["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        # An absent or damaged cache entry only costs a read.
        pass
    digest = sha256_file(resolved)
    write_atomically(entry, json.dumps({"seen": seen, "sha256": digest}))
    return digest


def relative_files(folder: Path) -> list[str]:
    """Every file below `folder`, as sorted POSIX paths relative to it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def tree_sha256(files: dict[str, str]) -> str:
    """One hash over a folder: SHA-256 of its sorted `sha256  name` lines."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that a reader, or a crash, sees the old file or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder to fill that becomes `final` when the block ends well, and is removed when it does not.

    What a killed process left behind is removed by the next call for the same `final`.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.parent / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        os.replace(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def require_room(folder: Path, needed: int, what: str) -> None:
    """Refuse before work starts when the disk that will hold `folder` has less than `needed` bytes free."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise InputError(
            f"{what} needs {human_bytes(needed)} in {folder}, but its disk has {human_bytes(free)} free: "
            "free some space or choose another folder"
        )


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Be the only process on this machine that makes or removes `path`; the kernel frees the lock however it ends.

    The lock file stays: were it deleted, one process could hold the old file and another a new one.
    """
    paths.locks().mkdir(parents=True, exist_ok=True)
    with (paths.locks() / hashlib.sha256(os.fsencode(path.absolute())).hexdigest()).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
