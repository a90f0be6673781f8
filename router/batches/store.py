"""What the API does with files and batches: makes, shows, lists, cancels and deletes them, each for its owner."""

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from router.batches.blobs import Blobs
from router.batches.database import Database
from router.batches.records import UNFINISHED, BatchRecord, FileRecord, LineError, new_id
from router.errors import ApiError

Order = Literal["asc", "desc"]
WINDOWS = {"24h": 24 * 3600}
"""Completion windows by name, in seconds."""

BATCH_COLUMNS = ", ".join(field.name for field in fields(BatchRecord))
UNFINISHED_SQL = f"({', '.join(repr(status) for status in UNFINISHED)})"
_FILE_COLUMNS = ", ".join(field.name for field in fields(FileRecord))


class BatchStore:
    """Files and batches in `folder`, shared by the router's processes on one machine. Blocks: to be used in threads.

    An object of another owner is an object that does not exist: ApiError 404.
    """

    def __init__(self, folder: Path) -> None:
        self.blobs = Blobs(folder / "files")
        self.database = Database(folder / "batches.sqlite3")
        self._folder = folder

    def open(self) -> None:
        """Raises TwinspeedError where the folder is another version's, OSError where it cannot be used."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.database.open()
        with self.database.reading() as connection:
            known = {str(row[0]) for row in connection.execute("SELECT id FROM files")}
        # One that is made meanwhile is too young to be taken for a leftover.
        self.blobs.open(known.__contains__)

    def close(self) -> None:
        self.database.close()

    def add_file(self, record: FileRecord) -> None:
        """Records a file whose content is in its place."""
        with self.database.transaction() as connection:
            insert_file(connection, record)

    def get_file(self, file_id: str, owner: str | None) -> FileRecord:
        with self.database.reading() as connection:
            return _file(connection, file_id, owner)

    def list_files(
        self, owner: str | None, *, purpose: str | None, after: str | None, limit: int, order: Order
    ) -> tuple[list[FileRecord], bool]:
        """Up to `limit` files by when they were made, from behind `after` on; and whether there are more."""
        condition = "owner IS ? AND (? IS NULL OR purpose = ?)"
        with self.database.reading() as connection:
            rows = _page(connection, "files", _FILE_COLUMNS, condition, (owner, purpose, purpose), after, limit, order)
        return [FileRecord(*row) for row in rows[:limit]], len(rows) > limit

    def delete_file(self, file_id: str, owner: str | None) -> None:
        """Raises ApiError 409 `file_in_use` while a batch that is not finished reads it."""
        with self.database.transaction() as connection:
            _file(connection, file_id, owner)
            reader = connection.execute(
                f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {UNFINISHED_SQL}", (file_id,)
            ).fetchone()
            if reader is not None:
                message = f"File {file_id} is the input of {reader[0]}, which is not finished: cancel it first."
                raise ApiError(409, message, code="file_in_use", param="file_id")
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self.blobs.remove(file_id)

    def create_batch(
        self,
        owner: str | None,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str,
        metadata: dict[str, str] | None,
    ) -> BatchRecord:
        """Raises ApiError 404 for an unknown file, 400 for one that was not uploaded for batches."""
        now = int(time.time())
        with self.database.transaction() as connection:
            found = _file(connection, input_file_id, owner, param="input_file_id")
            if found.purpose != "batch":
                message = f"File {input_file_id} has purpose {found.purpose!r}; a batch reads files of purpose 'batch'."
                raise ApiError(400, message, code="invalid_value", param="input_file_id")
            batch = BatchRecord(
                id=new_id("batch_"),
                owner=owner,
                endpoint=endpoint,
                input_file_id=input_file_id,
                completion_window=completion_window,
                metadata=metadata,
                status="validating",
                created_at=now,
                expires_at=now + WINDOWS[completion_window],
            )
            connection.execute(
                "INSERT INTO batches (id, owner, endpoint, input_file_id, completion_window, metadata, status,"
                " created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    batch.id,
                    owner,
                    endpoint,
                    input_file_id,
                    completion_window,
                    None if metadata is None else json.dumps(metadata),
                    batch.status,
                    now,
                    batch.expires_at,
                ),
            )
        return batch

    def get_batch(self, batch_id: str, owner: str | None) -> BatchRecord:
        with self.database.reading() as connection:
            return _batch(connection, batch_id, owner)

    def list_batches(self, owner: str | None, *, after: str | None, limit: int) -> tuple[list[BatchRecord], bool]:
        """Up to `limit` batches, the newest first, from behind `after` on; and whether there are more."""
        with self.database.reading() as connection:
            rows = _page(connection, "batches", BATCH_COLUMNS, "owner IS ?", (owner,), after, limit, "desc")
        return [batch_from(row) for row in rows[:limit]], len(rows) > limit

    def cancel_batch(self, batch_id: str, owner: str | None) -> BatchRecord:
        """Asks for the batch's end; one that nobody has begun ends at once.

        Raises:
            ApiError: 409 where it is too late for that.
        """
        now = int(time.time())
        with self.database.transaction() as connection:
            batch = _batch(connection, batch_id, owner)
            if batch.status == "cancelling":
                return batch
            if batch.status not in ("validating", "in_progress"):
                message = f"Batch {batch_id} is {batch.status} and can no longer be cancelled."
                raise ApiError(409, message, code="batch_not_cancellable")
            [begun] = connection.execute("SELECT claim IS NOT NULL FROM batches WHERE id = ?", (batch_id,)).fetchone()
            if begun or batch.status == "in_progress":
                changed = replace(batch, status="cancelling", cancelling_at=now)
            else:
                changed = replace(batch, status="cancelled", cancelling_at=now, cancelled_at=now)
            connection.execute(
                "UPDATE batches SET status = ?, cancelling_at = ?, cancelled_at = ? WHERE id = ?",
                (changed.status, changed.cancelling_at, changed.cancelled_at, batch_id),
            )
        return changed


def insert_file(connection: sqlite3.Connection, record: FileRecord) -> None:
    connection.execute(
        f"INSERT INTO files ({_FILE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (record.id, record.owner, record.purpose, record.filename, record.size, record.created_at),
    )


def batch_from(row: Iterable[object]) -> BatchRecord:
    """The batch in a row of BATCH_COLUMNS."""
    values = dict(zip((field.name for field in fields(BatchRecord)), row, strict=True))
    if values["metadata"] is not None:
        values["metadata"] = json.loads(str(values["metadata"]))
    values["errors"] = tuple(LineError(**error) for error in json.loads(str(values["errors"])))
    return BatchRecord(**values)  # type: ignore[arg-type]


def _page(
    connection: sqlite3.Connection,
    table: str,
    columns: str,
    condition: str,
    values: tuple[str | None, ...],
    after: str | None,
    limit: int,
    order: Order,
) -> list[Any]:
    """Rows behind `after`, one more than `limit` where there are."""
    if after is not None:
        condition += f" AND id {'>' if order == 'asc' else '<'} ?"
        values = (*values, after)
    query = f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY id {order} LIMIT ?"
    return connection.execute(query, (*values, limit + 1)).fetchall()


def _file(connection: sqlite3.Connection, file_id: str, owner: str | None, param: str = "file_id") -> FileRecord:
    query = f"SELECT {_FILE_COLUMNS} FROM files WHERE id = ? AND owner IS ?"
    row = connection.execute(query, (file_id, owner)).fetchone()
    if row is None:
        raise ApiError(404, f"No such File object: {file_id}", code="not_found", param=param)
    return FileRecord(*row)


def _batch(connection: sqlite3.Connection, batch_id: str, owner: str | None) -> BatchRecord:
    query = f"SELECT {BATCH_COLUMNS} FROM batches WHERE id = ? AND owner IS ?"
    row = connection.execute(query, (batch_id, owner)).fetchone()
    if row is None:
        raise ApiError(404, f"No such Batch object: {batch_id}", code="not_found", param="batch_id")
    return batch_from(row)
