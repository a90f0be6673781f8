"""OpenAI's objects as JSON: what clients send for a batch, and how files and batches look to them."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.batches.records import BatchRecord, BatchStatus, FileRecord
from router.errors import ApiError

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]


class CreateBatch(BaseModel):
    """The body of POST /v1/batches. What it does not know it refuses, as OpenAI does, rather than leave it undone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None


class ListFiles(BaseModel):
    """The query of GET /v1/files."""

    after: str | None = Field(default=None, pattern=r"^file-[0-9a-f]{32}$")
    limit: int = Field(default=10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class ListBatches(BaseModel):
    """The query of GET /v1/batches."""

    after: str | None = Field(default=None, pattern=r"^batch_[0-9a-f]{32}$")
    limit: int = Field(default=20, ge=1, le=100)


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = None

    @classmethod
    def of(cls, record: FileRecord) -> "FileObject":
        return cls(
            id=record.id,
            bytes=record.size,
            created_at=record.created_at,
            filename=record.filename,
            purpose=record.purpose,
        )


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchError(BaseModel):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, record: BatchRecord) -> "BatchObject":
        errors = [
            BatchError(code=error.code, line=error.line, message=error.message, param=error.param)
            for error in record.errors
        ]
        return cls(
            id=record.id,
            endpoint=record.endpoint,
            errors=BatchErrors(data=errors) if errors else None,
            input_file_id=record.input_file_id,
            completion_window=record.completion_window,
            status=record.status,
            output_file_id=record.output_file_id,
            error_file_id=record.error_file_id,
            created_at=record.created_at,
            in_progress_at=record.in_progress_at,
            expires_at=record.expires_at,
            finalizing_at=record.finalizing_at,
            completed_at=record.completed_at,
            failed_at=record.failed_at,
            expired_at=record.expired_at,
            cancelling_at=record.cancelling_at,
            cancelled_at=record.cancelled_at,
            request_counts=RequestCounts(total=record.total, completed=record.completed, failed=record.failed),
            metadata=record.metadata,
        )


Item = TypeVar("Item", FileObject, BatchObject)


class Page(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(items: list[Item], has_more: bool) -> Page[Item]:
    first, last = (items[0].id, items[-1].id) if items else (None, None)
    return Page(data=items, first_id=first, last_id=last, has_more=has_more)


def refusal(error: ValidationError) -> ApiError:
    """The first thing that is wrong with what a client sent, as OpenAI says it."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "missing":
            message, code = f"Missing required parameter: '{name}'.", "missing_required_parameter"
        case "extra_forbidden":
            message, code = f"Unknown parameter: '{name}'.", "unknown_parameter"
        case "json_invalid":
            message, code = f"The request body is not valid JSON: {first['msg']}.", "invalid_json"
        case _:
            message, code = f"Invalid '{name}': {first['msg']}." if name else f"{first['msg']}.", "invalid_value"
    return ApiError(400, message, code=code, param=name or None)
