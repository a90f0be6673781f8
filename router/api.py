"""What clients can ask for: which paths go to engines, and what the router answers by itself."""

import asyncio
import time
from http import HTTPStatus
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI, Request as ApiRequest, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from router.config import GOALS
from router.errors import ApiError
from router.exchange import Answer, Exchange
from router.gateway import Gateway
from router.http.asgi import AsgiResponder
from router.http.server import Connection, Request, Responder
from router.inner import Owners
from router.observe import Observer
from router.openapi import FORWARDED, operation
from router.relay import Attempt
from router.table import unknown_model


class ForwardedResponder:
    """Answers one request by the gateway. Its task is cancelled when the client leaves."""

    def __init__(self, gateway: Gateway, request: Request, connection: Connection) -> None:
        self._gateway = gateway
        self._request = request
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None

    def body_arrived(self) -> None:
        """Bodies are taken whole."""

    def request_complete(self) -> None:
        exchange = self._gateway.begin(self._request, self._connection)
        self._exchange = exchange
        self._task = asyncio.get_running_loop().create_task(self._gateway.run(exchange, self._respond))

    def client_left(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def writing_paused(self) -> None:
        for attempt in self._attempts():
            attempt.pause()

    def writing_resumed(self) -> None:
        for attempt in self._attempts():
            attempt.resume()

    def _attempts(self) -> list[Attempt]:
        legs = self._exchange.legs if self._exchange is not None else []
        return [leg.attempt for leg in legs if leg.attempt is not None]

    def _respond(self, answer: Answer) -> None:
        self._connection.respond(answer.status, answer.headers, answer.body)


class PublicApp:
    """Chooses between the gateway, for what engines answer, and an ASGI application for the rest."""

    def __init__(self, gateway: Gateway, rest: FastAPI) -> None:
        self._gateway = gateway
        self._rest = rest

    def responder(self, request: Request, connection: Connection) -> Responder:
        if request.method == b"POST" and request.path in FORWARDED:
            return ForwardedResponder(self._gateway, request, connection)
        return AsgiResponder(self._rest, request, connection)

    def body_limit(self, request: Request) -> int | None:
        if request.path == "/v1/files":
            return None
        return self._gateway.table.config.limits.body_bytes


class AsgiApp:
    """Answers everything with one ASGI application."""

    def __init__(self, app: FastAPI, body_bytes: int = 1024 * 1024) -> None:
        self._app = app
        self._body_bytes = body_bytes

    def responder(self, request: Request, connection: Connection) -> Responder:
        return AsgiResponder(self._app, request, connection)

    def body_limit(self, request: Request) -> int | None:
        return self._body_bytes


def create_rest(gateway: Gateway, observer: Observer, owner_of: Owners, *more: APIRouter) -> FastAPI:
    """What the router answers by itself: models, health, metrics, and the routes in `more`."""
    app = FastAPI(
        title="Twinspeed router", version=version("twinspeed"), docs_url=None, redoc_url=None, redirect_slashes=False
    )
    use_openai_errors(app)
    created = int(time.time())
    for routes in more:
        app.include_router(routes)

    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether the router serves, and for each model how many replicas of each variant are ready."""
        models = {entry.name: entry.ready() for entry in gateway.table.entries.values()}
        return JSONResponse({"status": "ok", "models": models})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await observer.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    # Answered before a request gets here; declared for the document, and to refuse other methods.
    for path in sorted(FORWARDED):
        app.add_api_route(path, _answered_elsewhere, methods=["POST"], openapi_extra=operation(path))

    def entry(model_id: str) -> dict[str, object]:
        return {"id": model_id, "object": "model", "created": created, "owned_by": "twinspeed"}

    @app.get("/v1/models", dependencies=[Depends(owner_of)])
    async def list_models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [entry(name) for name in gateway.table.listed()]})

    @app.get("/v1/models/{model_id:path}", dependencies=[Depends(owner_of)])
    async def get_model(model_id: str) -> JSONResponse:
        known = gateway.table.listed()
        if model_id not in known and model_id.rpartition(":")[2] not in GOALS:
            raise unknown_model(model_id, known)
        gateway.table.resolve(model_id)
        return JSONResponse(entry(model_id))

    return app


async def _answered_elsewhere() -> None:
    raise ApiError(404, "Not Found.", code="not_found")


def use_openai_errors(app: FastAPI) -> None:
    """Whatever goes wrong in `app` is answered in OpenAI's shape."""

    def answer(error: ApiError) -> Response:
        response = Response(error.body, error.status, media_type="application/json")
        response.headers.update({name.decode(): value.decode() for name, value in error.headers})
        return response

    @app.exception_handler(ApiError)
    async def api_error(_: ApiRequest, error: ApiError) -> Response:
        return answer(error)

    @app.exception_handler(HTTPException)
    async def http_error(request: ApiRequest, error: HTTPException) -> Response:
        message = f"{error.detail}: {request.method} {request.url.path}"
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        code = HTTPStatus(error.status_code).name.lower()
        return answer(ApiError(error.status_code, message, code=code, headers=headers))

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: ApiRequest, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answer(ApiError(422, f"{where}: {first['msg']}", code="unprocessable_entity", param=where))

    @app.exception_handler(Exception)
    async def unexpected(_: ApiRequest, error: Exception) -> Response:
        return answer(ApiError(500, "The router failed on this request.", code="internal_server_error"))
