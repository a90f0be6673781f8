"""A real server with the routes of a batch service, and an engine that does what each request's body tells it."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response
from openai import OpenAI

from router.batches import BatchRunner, BatchService, BatchStore, create_routes
from router.batches.records import BatchRecord, FileRecord, new_id
from router.errors import ApiError

CHAT = "/v1/chat/completions"


class Engine:
    """Answers at once with the request's `tag`, unless its body asks for `status`, `seconds`, `raw` or `fault`."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.owners: set[str | None] = set()
        self.running = 0
        self.most_running = 0
        self.answered = 0
        self.refuse_first = 0
        self.retry_after: str | None = None
        self.request_ids: dict[Any, str] = {}

    async def __call__(
        self, endpoint: str, body: bytes, owner: str | None, request_id: str
    ) -> tuple[int, dict[str, str], bytes]:
        request = json.loads(body)
        tag = request.get("tag")
        self.sent.append(tag)
        self.owners.add(owner)
        self.request_ids[tag] = request_id
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(request.get("seconds", 0))
        finally:
            self.running -= 1
        if "fault" in request:
            raise RuntimeError("planted")
        if self.refuse_first > 0:
            self.refuse_first -= 1
            return 429, {"retry-after": self.retry_after} if self.retry_after else {}, b'{"error": {"code": "later"}}'
        self.answered += 1
        answer = (
            request["raw"].encode() if "raw" in request else json.dumps({"tag": tag, "endpoint": endpoint}).encode()
        )
        return request.get("status", 200), {"content-type": "application/json"}, answer


def line(tag: object, custom_id: str | None = None, url: str = CHAT, **body: object) -> str:
    name = f"id-{tag}" if custom_id is None else custom_id
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"tag": tag, **body}})


def lines(*made: str) -> bytes:
    return "".join(f"{each}\n" for each in made).encode()


def create(store: BatchStore, content: bytes) -> BatchRecord:
    """A batch of nobody's, made without HTTP."""
    record = FileRecord(new_id("file-"), None, "batch", "in.jsonl", len(content), int(time.time()))
    with store.blobs.create(record.id) as partial:
        partial.write(content)
        partial.keep()
    store.add_file(record)
    return store.create_batch(
        None, input_file_id=record.id, endpoint=CHAT, completion_window="24h", metadata={"job": "night"}
    )


async def owner_of(request: Request) -> str | None:
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not key:
        raise ApiError(401, "No key.", code="invalid_api_key")
    return key


class Running:
    """A service behind uvicorn on a free loopback port."""

    def __init__(self, service: BatchService, engine: Engine) -> None:
        self.service = service
        self.engine = engine
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(self._app(), log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve([self._socket])), daemon=True)
        self._clients: list[OpenAI] = []

    def _app(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> Any:
            await self.service.open()
            yield
            await self.service.close()

        app = FastAPI(lifespan=lifespan)
        app.include_router(create_routes(self.service, owner_of))

        @app.exception_handler(ApiError)
        async def refused(_: Request, error: ApiError) -> Response:
            return Response(error.body, error.status, media_type="application/json")

        return app

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.002)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def client(self, key: str = "key-a") -> OpenAI:
        client = OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0)
        self._clients.append(client)
        return client

    def files(self) -> list[str]:
        return sorted(path.name for path in self.service.store.blobs.path("").iterdir())


@contextmanager
def running(folder: Path, engine: Engine | None = None, **options: Any) -> Iterator[Running]:
    """`poll` and `lease` are the runner's; everything else is the service's."""
    engine = engine or Engine()
    paces = {name: options.pop(name) for name in ("poll", "lease") if name in options}
    service = BatchService(folder, engine, concurrency=options.pop("concurrency", 8), **options)
    if paces:
        service.runner = BatchRunner(service.store, engine, 8, **paces)
    server = Running(service, engine)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ended(client: OpenAI, batch_id: str, seconds: float = 20.0) -> Any:
    """The batch, once it is over."""
    deadline = time.monotonic() + seconds
    while True:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "cancelled", "expired"):
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)


def run(client: OpenAI, content: bytes, endpoint: Any = CHAT) -> Any:
    """The ended batch of an input."""
    made = client.files.create(file=("in.jsonl", content), purpose="batch")
    return ended(client, client.batches.create(input_file_id=made.id, endpoint=endpoint, completion_window="24h").id)


def read(client: OpenAI, file_id: str | None) -> list[Any]:
    """The JSON lines of a file; none where there is no file."""
    if file_id is None:
        return []
    return [json.loads(each) for each in client.files.content(file_id).read().splitlines()]
