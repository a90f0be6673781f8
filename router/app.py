"""The web application: the hot path, models, health, metrics, and OpenAI's error shape everywhere."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import ClientError, ClientSession, ClientTimeout
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route

from router.config import RouterConfig, Upstream
from router.errors import ApiError
from router.forward import Forwarder, open_session, unknown_model
from router.metrics import Metrics

_FORWARDED = ("/v1/chat/completions", "/v1/completions")
_PROBE_TIMEOUT = ClientTimeout(total=2)


def create_app(config: RouterConfig) -> FastAPI:
    """The router for one model. Holds no state outside the returned app."""
    metrics = Metrics(config.upstreams)
    forwarder = Forwarder(config, metrics)
    models = config.models
    created = int(time.time())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with open_session() as forwarder.session:
            yield

    app = FastAPI(
        title="Twinspeed router",
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        routes=[Route(path, forwarder, methods=["POST"]) for path in _FORWARDED],
    )
    _use_openai_errors(app)

    @app.get("/health")
    async def health() -> JSONResponse:
        upstreams = config.upstreams.values()
        states = await asyncio.gather(*(_probe(forwarder.session, upstream) for upstream in upstreams))
        return JSONResponse({"status": "ok", "variants": dict(zip(config.upstreams, states, strict=True))})

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    def entry(model_id: str) -> dict[str, object]:
        return {"id": model_id, "object": "model", "created": created, "owned_by": "twinspeed"}

    @app.get("/v1/models")
    async def list_models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [entry(model_id) for model_id in models]})

    @app.get("/v1/models/{model_id:path}")
    async def get_model(model_id: str) -> JSONResponse:
        if model_id not in models:
            raise unknown_model(model_id, models)
        return JSONResponse(entry(model_id))

    return app


async def _probe(session: ClientSession, upstream: Upstream) -> str:
    try:
        async with session.get(f"{upstream.base_url}/health", timeout=_PROBE_TIMEOUT) as response:
            return "up" if response.status == HTTPStatus.OK else "down"
    except (ClientError, TimeoutError):
        return "down"


def _use_openai_errors(app: FastAPI) -> None:
    def answer(error: ApiError) -> Response:
        response = Response(error.body, error.status, media_type="application/json")
        response.headers.update({name.decode(): value.decode() for name, value in error.headers})
        return response

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return answer(error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{error.detail}: {request.method} {request.url.path}"
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        code = HTTPStatus(error.status_code).name.lower()
        return answer(ApiError(error.status_code, message, code=code, headers=headers))

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answer(ApiError(422, f"{where}: {first['msg']}", code="unprocessable_entity", param=where))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return answer(ApiError(500, "The router failed on this request.", code="internal_server_error"))
