"""Keys and limits of one router process, with keys and settled use in a SQLite file.

Limits are counted in memory. What is settled is written behind: all that changed, in one transaction, at most every
0.1 s, by a thread. So a request never waits for the disk, and a process that is killed loses what was settled in its
last 0.1 s. The file is never damaged by that.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.limits.account import Account, Period
from router.limits.keys import Key, KeySettings, new_key
from router.limits.memory import MemoryStore
from router.limits.results import Reservation
from router.limits.store import StoreUnavailable, reason, stored_key
from twinspeed.errors import InputError

_T = TypeVar("_T")
_Row = tuple[str, int, int, int, int, int, int, int, int]

_WRITE_EVERY_S = 0.1
_RETRY_S = 1.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, sha256 BLOB NOT NULL UNIQUE, settings TEXT NOT NULL, created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS used (
    key_id TEXT PRIMARY KEY,
    day INTEGER NOT NULL, day_cost INTEGER NOT NULL, day_tokens INTEGER NOT NULL, day_requests INTEGER NOT NULL,
    month INTEGER NOT NULL, month_cost INTEGER NOT NULL, month_tokens INTEGER NOT NULL, month_requests INTEGER NOT NULL
) STRICT;
"""
_READ = """
SELECT id, sha256, settings, created_at, revoked_at, day, day_cost, day_tokens, day_requests,
       month, month_cost, month_tokens, month_requests
FROM keys LEFT JOIN used ON used.key_id = keys.id ORDER BY created_at, keys.rowid
"""

_logger = logging.getLogger(__name__)


class SqliteStore(MemoryStore):
    """Owns its file: a lock beside it keeps other processes out."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._changed: set[Account] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises InputError: the file cannot be opened, is something else, or is another router's."""
        self._lock = self._take_lock()
        # SQLite's connections are bound to one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="limits")
        try:
            await self._in_thread(self._read)
        except BaseException as error:
            self._let_go()
            if isinstance(error, StoreUnavailable):
                raise InputError(str(error)) from None
            raise

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._in_thread(self._finish, self._changes())
        finally:
            self._let_go()

    async def create_key(self, settings: KeySettings) -> tuple[Key, str]:
        key, secret, hashed = new_key(settings)
        row = (key.id, hashed, settings.model_dump_json(), key.created_at)
        await self._in_thread(self._execute, "INSERT INTO keys VALUES (?, ?, ?, ?, NULL)", row)
        self._add(key, hashed, Account(key.id))
        return key, secret

    async def revoke_key(self, key_id: str) -> bool:
        # In memory first: whatever becomes of the file, the key is out of use now.
        if not self._remove(key_id):
            return False
        statement = "UPDATE keys SET revoked_at = ? WHERE id = ?"
        await self._in_thread(self._execute, statement, (int(time.time()), key_id))
        return True

    def _end(self, reservation: Reservation, tokens: int, cost: int, requests: int) -> Account | None:
        account = super()._end(reservation, tokens, cost, requests)
        if account is not None:
            self._changed.add(account)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_WRITE_EVERY_S, self._start_writing)
        return account

    def _start_writing(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_behind())

    async def _write_behind(self) -> None:
        changed = self._changed
        rows = self._changes()
        wait = _WRITE_EVERY_S
        try:
            await self._in_thread(self._write, rows)
        except StoreUnavailable as error:
            _logger.error("%s What was used is kept in memory and written later.", error)
            self._changed |= changed
            wait = _RETRY_S
        again = asyncio.get_running_loop().call_later(wait, self._start_writing) if self._changed else None
        self._timer, self._writing = again, None

    def _changes(self) -> list[_Row]:
        changed, self._changed = self._changed, set()
        return [(account.key_id, *account.day.row(), *account.month.row()) for account in changed]

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"state.url: {self._path}: {reason(error)}.") from None

    def _read(self) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
            for key_id, hashed, settings, created_at, revoked_at, *used in self._connection.execute(_READ):
                account = Account(key_id)
                if used[0] is not None:
                    account.day, account.month = Period(*used[:4]), Period(*used[4:])
                if revoked_at is None:
                    self._add(stored_key(key_id, settings, created_at), hashed, account)
                else:
                    self._accounts[key_id] = account
        except BaseException:
            self._connection.close()
            raise

    def _execute(self, statement: str, row: tuple[object, ...]) -> None:
        self._connection.execute(statement, row)

    def _write(self, rows: list[_Row]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany("INSERT OR REPLACE INTO used VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def _finish(self, rows: list[_Row]) -> None:
        try:
            self._write(rows)
        finally:
            self._connection.close()

    def _take_lock(self) -> int:
        # A file of its own: SQLite loses its locks when anyone else in the process closes the database's file.
        name = f"{self._path}.lock"
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"state.url: {name}: {error.strerror}.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise InputError(
                f"state.url: {self._path} is in use by another router; "
                "stop that one, or share redis:// or postgresql:// between them."
            ) from None
        return lock

    def _let_go(self) -> None:
        self._thread.shutdown()
        os.close(self._lock)
