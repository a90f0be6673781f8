"""The HTTP side: OpenAI's /v1/files and /v1/batches."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from router.batches.blobs import PartialFile
from router.batches.records import FileRecord, new_id
from router.batches.service import BatchService
from router.batches.upload import OVERHEAD, Upload, too_large
from router.batches.wire import (
    BatchObject,
    CreateBatch,
    FileDeleted,
    FileObject,
    ListBatches,
    ListFiles,
    page_of,
    refusal,
)
from router.errors import ApiError

Query = TypeVar("Query", ListFiles, ListBatches)

# An upload is handed to a thread in pieces of about this size.
_PIECE = 256 * 1024


def create_routes(service: BatchService, owner_of: Callable[[Request], Awaitable[str | None]]) -> APIRouter:
    """The routes. `owner_of` says whose files and batches a request is about, before its body is read.

    It raises ApiError for those who may not ask, and gives None where there are no keys. The application that
    includes the routes answers ApiError in OpenAI's shape.
    """
    routes = APIRouter()
    store = service.store
    Owner = Annotated[str | None, Depends(owner_of)]

    @routes.post("/v1/files")
    async def create_file(request: Request, owner: Owner) -> Response:
        return _json(FileObject.of(await _upload(service, request, owner)))

    @routes.get("/v1/files")
    async def list_files(request: Request, owner: Owner) -> Response:
        query = _query(ListFiles, request)

        def work() -> Response:
            records, more = store.list_files(
                owner, purpose=query.purpose, after=query.after, limit=query.limit, order=query.order
            )
            return _json(page_of([FileObject.of(record) for record in records], more))

        return await asyncio.to_thread(work)

    @routes.get("/v1/files/{file_id}")
    async def get_file(file_id: str, owner: Owner) -> Response:
        return _json(FileObject.of(await asyncio.to_thread(store.get_file, file_id, owner)))

    @routes.get("/v1/files/{file_id}/content")
    async def get_content(file_id: str, owner: Owner) -> Response:
        found = await asyncio.to_thread(store.get_file, file_id, owner)
        path = store.blobs.path(found.id)
        return FileResponse(path, media_type="application/octet-stream", filename=found.filename)

    @routes.delete("/v1/files/{file_id}")
    async def delete_file(file_id: str, owner: Owner) -> Response:
        await asyncio.to_thread(store.delete_file, file_id, owner)
        return _json(FileDeleted(id=file_id))

    @routes.post("/v1/batches")
    async def create_batch(request: Request, owner: Owner) -> Response:
        try:
            wanted = CreateBatch.model_validate_json(await request.body())
        except ValidationError as error:
            raise refusal(error) from None
        batch = await asyncio.to_thread(
            store.create_batch,
            owner,
            input_file_id=wanted.input_file_id,
            endpoint=wanted.endpoint,
            completion_window=wanted.completion_window,
            metadata=wanted.metadata,
        )
        service.runner.wake()
        return _json(BatchObject.of(batch))

    @routes.get("/v1/batches")
    async def list_batches(request: Request, owner: Owner) -> Response:
        query = _query(ListBatches, request)

        def work() -> Response:
            records, more = store.list_batches(owner, after=query.after, limit=query.limit)
            return _json(page_of([BatchObject.of(record) for record in records], more))

        return await asyncio.to_thread(work)

    @routes.get("/v1/batches/{batch_id}")
    async def get_batch(batch_id: str, owner: Owner) -> Response:
        return _json(BatchObject.of(await asyncio.to_thread(store.get_batch, batch_id, owner)))

    @routes.post("/v1/batches/{batch_id}/cancel")
    async def cancel_batch(batch_id: str, owner: Owner) -> Response:
        batch = await asyncio.to_thread(store.cancel_batch, batch_id, owner)
        service.runner.wake()
        return _json(BatchObject.of(batch))

    return routes


async def _upload(service: BatchService, request: Request, owner: str | None) -> FileRecord:
    """The file that a request brings, stored."""
    store, limit = service.store, service.max_file_bytes
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit + OVERHEAD:
        raise too_large(limit)
    file_id = new_id("file-")
    try:
        partial = await asyncio.to_thread(store.blobs.create, file_id)
        try:
            upload = Upload(request.headers.get("content-type", ""), partial, limit)
            async for piece in _pieces(request):
                await asyncio.to_thread(upload.feed, piece)
            filename, purpose = upload.finish()
            record = FileRecord(file_id, owner, purpose, filename, partial.size, int(time.time()))

            def keep() -> None:
                partial.keep()
                store.add_file(record)

            await asyncio.to_thread(keep)
        finally:
            await asyncio.to_thread(_close, partial)
    except ClientDisconnect:
        raise ApiError(400, "The upload broke off.", code="invalid_multipart") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ApiError(507, "The router has no room for the file.", code="insufficient_storage") from None
    return record


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body, in pieces that are worth a thread's while."""
    gathered: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        gathered.append(chunk)
        size += len(chunk)
        if size >= _PIECE:
            yield b"".join(gathered)
            gathered.clear()
            size = 0
    yield b"".join(gathered)


def _close(partial: PartialFile) -> None:
    with partial:
        """Nothing is left of it unless it was kept."""


def _query(model: type[Query], request: Request) -> Query:
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise refusal(error) from None


def _json(content: BaseModel) -> Response:
    return Response(content.model_dump_json(), media_type="application/json")
