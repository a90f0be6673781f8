"""What runners do with batches: claim one, record what became of its requests, and bring it to its end."""

import json
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import Literal

from router.batches.records import BatchRecord, BatchStatus, FileRecord, LineError, LineResult
from router.batches.store import BATCH_COLUMNS, UNFINISHED_SQL, BatchStore, batch_from, insert_file

Ending = Literal["completed", "expired", "cancelled"]
_FORGOTTEN_AT_ONCE = 500


class ClaimLostError(Exception):
    """The batch is not this runner's any more, or not in the state in which the runner took it to be."""


class Progress:
    """The batches as one runner sees them. Blocks: to be used in threads.

    `runner` names one runner in one process. `now` and claims are in seconds of the machine's monotonic clock, which
    all its processes share. Whatever changes a batch does so only while the runner's claim to it stands.
    """

    def __init__(self, store: BatchStore, runner: str) -> None:
        self.blobs = store.blobs
        self._database = store.database
        self._runner = runner

    def claim(self, now: float, lease: float, running: Sequence[str], limit: int) -> list[BatchRecord]:
        """Up to `limit` batches that this runner may work on until `now + lease`, none of them in `running`.

        The claims of a runner that died end by themselves. One that seems to last longer than any can is from before
        the machine was started.
        """
        wanted = f"""
            status IN {UNFINISHED_SQL} AND id NOT IN (SELECT value FROM json_each(:running))
            AND (claim IS NULL OR claim = :runner OR claim_until < :now OR claim_until > :now + :lease + 1)
            ORDER BY status = 'cancelling' DESC, id LIMIT :limit"""
        values = {"running": json.dumps(running), "runner": self._runner, "now": now, "lease": lease, "limit": limit}
        # Most often there is nothing to do, and looking needs no lock.
        with self._database.reading() as connection:
            if connection.execute(f"SELECT id FROM batches WHERE {wanted}", values).fetchone() is None:
                return []
        with self._database.transaction() as connection:
            rows = connection.execute(
                f"UPDATE batches SET claim = :runner, claim_until = :now + :lease"
                f" WHERE id IN (SELECT id FROM batches WHERE {wanted}) RETURNING {BATCH_COLUMNS}",
                values,
            ).fetchall()
        return sorted(map(batch_from, rows), key=lambda batch: batch.id)

    def renew(self, now: float, lease: float) -> dict[str, BatchStatus]:
        """Extends the runner's claims to `now + lease`; the batches that are still its own, with their states."""
        with self._database.transaction() as connection:
            return dict(
                connection.execute(
                    f"UPDATE batches SET claim_until = ? WHERE claim = ? AND status IN {UNFINISHED_SQL}"
                    " RETURNING id, status",
                    (now + lease, self._runner),
                ).fetchall()
            )

    def release(self) -> None:
        """Lets other runners go on at once with what this one has claimed."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE batches SET claim = NULL, claim_until = NULL WHERE claim = ?", (self._runner,))

    def begin(self, batch: BatchRecord, total: int) -> BatchRecord:
        """The input is valid and has `total` requests."""
        return self._change(batch, "status = 'in_progress', in_progress_at = ?, total = ?", (_now(), total))

    def refuse(self, batch: BatchRecord, errors: Sequence[LineError]) -> BatchRecord:
        """The input is not valid."""
        listed = json.dumps([asdict(error) for error in errors])
        return self._change(batch, "status = 'failed', failed_at = ?, errors = ?, claim = NULL", (_now(), listed))

    def answered_lines(self, batch: BatchRecord) -> frozenset[int]:
        """The lines whose requests need not be sent."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT line FROM results WHERE batch = ?", (batch.id,))
            return frozenset(int(row[0]) for row in rows)

    def record(self, batch: BatchRecord, results: Sequence[LineResult]) -> None:
        """Results and counts, durable together."""
        failed = sum(result.failed for result in results)
        with self._database.transaction() as connection:
            changed = connection.execute(
                "UPDATE batches SET completed = completed + ?, failed = failed + ? WHERE id = ? AND claim = ?",
                (len(results) - failed, failed, batch.id, self._runner),
            )
            if changed.rowcount == 0:
                raise ClaimLostError(batch.id)
            connection.executemany(
                "INSERT INTO results (batch, line, failed, output) VALUES (?, ?, ?, ?)",
                [(batch.id, result.line, result.failed, result.output) for result in results],
            )

    def finalize(self, batch: BatchRecord) -> BatchRecord:
        """Every request has its result; else ClaimLostError."""
        return self._change(
            batch, "status = 'finalizing', finalizing_at = ?", (_now(),), " AND completed + failed = total"
        )

    def results(self, batch: BatchRecord) -> Generator[LineResult, None, None]:
        """All that have been recorded, by line."""
        with self._database.reading() as connection:
            query = "SELECT line, failed, output FROM results WHERE batch = ? ORDER BY line"
            for line, failed, output in connection.execute(query, (batch.id,)):
                yield LineResult(line, bool(failed), output)

    def finish(self, batch: BatchRecord, ending: Ending, output: FileRecord | None, error: FileRecord | None) -> None:
        """The batch's end, with its files, whose contents are in their places."""
        with self._database.transaction() as connection:
            changed = connection.execute(
                f"UPDATE batches SET status = ?, {ending}_at = ?, output_file_id = ?, error_file_id = ?, claim = NULL"
                " WHERE id = ? AND claim = ? AND status = ?",
                (ending, _now(), output and output.id, error and error.id, batch.id, self._runner, batch.status),
            )
            if changed.rowcount == 0:
                raise ClaimLostError(batch.id)
            for record in filter(None, (output, error)):
                insert_file(connection, record)

    def forget_results(self) -> None:
        """Drops the results of finished batches, which are in their files; a few at a time, for others to write."""
        removed = _FORGOTTEN_AT_ONCE
        while removed == _FORGOTTEN_AT_ONCE:
            with self._database.transaction() as connection:
                removed = connection.execute(
                    "DELETE FROM results WHERE rowid IN (SELECT results.rowid FROM results"
                    f" WHERE batch NOT IN (SELECT id FROM batches WHERE status IN {UNFINISHED_SQL}) LIMIT ?)",
                    (_FORGOTTEN_AT_ONCE,),
                ).rowcount

    def _change(
        self, batch: BatchRecord, assignments: str, values: tuple[object, ...], condition: str = ""
    ) -> BatchRecord:
        with self._database.transaction() as connection:
            row = connection.execute(
                f"UPDATE batches SET {assignments} WHERE id = ? AND claim = ? AND status = ?{condition}"
                f" RETURNING {BATCH_COLUMNS}",
                (*values, batch.id, self._runner, batch.status),
            ).fetchone()
        if row is None:
            raise ClaimLostError(batch.id)
        return batch_from(row)


def _now() -> int:
    return int(time.time())
