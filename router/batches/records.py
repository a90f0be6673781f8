"""What a file, a batch and a request's result are to this package, and how they are named."""

import secrets
import time
from dataclasses import dataclass
from typing import Literal

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
UNFINISHED: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")


def new_id(prefix: str) -> str:
    """A name that nobody guesses; names sort by when they were made, so a list goes on behind any of them."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A stored file. `size` in bytes, `created_at` in seconds since the epoch; without keys `owner` is None."""

    id: str
    owner: str | None
    purpose: str
    filename: str
    size: int
    created_at: int


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a batch cannot run: what is wrong, on which line (from 1) of its input, in which parameter."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class LineResult:
    """What became of the request on line `line`: its JSON line for the output file or, if it failed, the error file."""

    line: int
    failed: bool
    output: bytes


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as it is stored. Times in seconds since the epoch, None where it has not come so far.

    `completed` and `failed` count requests that were answered; what a cancelled or expired batch never sent is in
    neither. `total` is 0 until the input has been found valid.
    """

    id: str
    owner: str | None
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    status: BatchStatus
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[LineError, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
