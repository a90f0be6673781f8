"""The SQLite database that the router's processes on one machine share: its tables, connections and transactions."""

import fcntl
import queue
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twinspeed.errors import TwinspeedError

_VERSION = 1
# Seconds that a writer waits for another process's transaction.
_BUSY = 30.0

# `claim` names the runner that works on a batch until `claim_until`, by the machine's monotonic clock.
_SCHEMA = """
CREATE TABLE files (
    id TEXT PRIMARY KEY, owner TEXT, purpose TEXT NOT NULL, filename TEXT NOT NULL, size INTEGER NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE INDEX files_of_owner ON files (owner, id);
CREATE TABLE batches (
    id TEXT PRIMARY KEY, owner TEXT, endpoint TEXT NOT NULL, input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL, metadata TEXT, status TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, in_progress_at INTEGER, finalizing_at INTEGER, completed_at INTEGER,
    failed_at INTEGER, expired_at INTEGER, cancelling_at INTEGER, cancelled_at INTEGER, output_file_id TEXT,
    error_file_id TEXT, errors TEXT NOT NULL DEFAULT '[]', total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, claim TEXT, claim_until REAL
);
CREATE INDEX batches_of_owner ON batches (owner, id);
CREATE INDEX batches_unfinished ON batches (id)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE TABLE results (
    batch TEXT NOT NULL, line INTEGER NOT NULL, failed INTEGER NOT NULL, output BLOB NOT NULL,
    PRIMARY KEY (batch, line)
);
"""


class Database:
    """Blocks: to be used in threads, by any number of them at once.

    The file has to be on a disk of this machine: SQLite's write-ahead log does not work across a network.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        # SQLite makes waiting writers poll, so those of one process queue up here instead.
        self._writing = threading.Lock()

    def open(self) -> None:
        """Raises TwinspeedError where another version of the router made the database."""
        with self._path.with_suffix(".lock").open("w") as lock:
            # Switching to the write-ahead log fails, rather than waits, while another process does it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.transaction() as connection:
                [version] = connection.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
                elif version != _VERSION:
                    raise TwinspeedError(
                        f"{self._path}: has format {version}, this router reads format {_VERSION}; "
                        "use another state.folder or the router that made it"
                    )

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Writes that are on disk, all of them, when the block ends; none where it raises."""
        with self._writing, self._connection("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view, whatever is written meanwhile."""
        with self._connection("BEGIN") as connection:
            yield connection

    @contextmanager
    def _connection(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            # What state a failed one is in nobody knows; closing it rolls back.
            connection.close()
            raise
        self._idle.put(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        # Else a loss of power could take transactions whose requests have been counted.
        connection.execute("PRAGMA synchronous = FULL")
        return connection
