"""The hot path: a raw ASGI application that forwards one request to one engine, byte for byte."""

import asyncio
import io
import logging
import os
from dataclasses import dataclass
from time import perf_counter

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    SocketTimeoutError,
    TCPConnector,
)
from starlette.types import Receive, Scope, Send
from yarl import URL

from router.body import BodyError, parse_body
from router.config import RouterConfig, Upstream
from router.errors import ApiError, Headers
from router.headers import find_header, to_client, to_engine
from router.metrics import NO_VARIANT, Metrics, VariantMetrics

BODY_LIMIT = 64 * 1024 * 1024
_WRITTEN_AT_ONCE = 1024 * 1024

# What nginx logs for a client that left before it was answered; never sent.
_CLIENT_LEFT = 499

_AUTO_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")

# Seconds. `sock_read` is the longest silence: a long prompt before the first token.
_TIMEOUT = ClientTimeout(total=None, connect=5, sock_read=600)

_logger = logging.getLogger(__name__)


def open_session() -> ClientSession:
    """The one HTTP client. Needs a running loop; whoever opens it closes it."""
    return ClientSession(
        # vLLM closes a connection that was idle for 5 s; a request sent at that moment would be lost.
        connector=TCPConnector(limit=0, keepalive_timeout=4),
        timeout=_TIMEOUT,
        auto_decompress=False,
        # One client's cookies must not reach another.
        cookie_jar=DummyCookieJar(),
        skip_auto_headers=_AUTO_HEADERS,
    )


@dataclass(slots=True)
class _Exchange:
    """One request between its client and its engine, and how far the answer has come."""

    upstream: Upstream
    metrics: VariantMetrics
    own_headers: Headers
    send: Send
    task: asyncio.Task[object]
    started: float
    status: int | None = None
    complete: bool = False
    client_left: bool = False

    async def watch(self, receive: Receive) -> None:
        """Cancels the exchange when its client leaves before the answer is complete."""
        while (await receive())["type"] != "http.disconnect":
            pass
        # ASGI reports a disconnect after a complete answer too.
        if not self.complete:
            self.client_left = True
            self.task.cancel()


class _ClientLeftError(Exception):
    """The client left while it was sending its request."""


class Forwarder:
    """Serves POST on a path that every engine serves; the path and the query are passed on.

    `session` is set for as long as the app runs.
    """

    session: ClientSession

    def __init__(self, config: RouterConfig, metrics: Metrics) -> None:
        self._models = config.models
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = find_header(scope["headers"], b"x-request-id") or os.urandom(16).hex().encode()
        own: Headers = [(b"x-request-id", request_id)]
        try:
            upstream, body = self._address(await _read_body(scope, receive))
        except ApiError as error:
            self._metrics.count(NO_VARIANT, error.status)
            await error.send(send, own)
            return
        except _ClientLeftError:
            self._metrics.count(NO_VARIANT, _CLIENT_LEFT)
            return
        variant = upstream.variant
        own += [(b"x-twinspeed-variant", variant.encode()), (b"x-accel-buffering", b"no")]
        task = asyncio.current_task()
        assert task is not None
        exchange = _Exchange(upstream, self._metrics.variants[variant], own, send, task, perf_counter())
        exchange.metrics.in_flight.inc()
        watcher = asyncio.create_task(exchange.watch(receive))
        try:
            response = await self._connect(upstream, scope, body, request_id)
            try:
                await _relay(response, exchange)
            finally:
                # Of a response that was not read to its end, this ends the engine's work.
                response.close()
        except ApiError as error:
            exchange.status = error.status
            exchange.complete = True
            await error.send(send, own)
        except asyncio.CancelledError:
            if not exchange.client_left:
                raise
            task.uncancel()
            exchange.metrics.disconnects.inc()
        finally:
            watcher.cancel()
            exchange.metrics.in_flight.dec()
            exchange.metrics.seconds.observe(perf_counter() - exchange.started)
            unanswered = _CLIENT_LEFT if exchange.client_left else 500
            self._metrics.count(variant, exchange.status or unanswered)

    def _address(self, raw: bytes) -> tuple[Upstream, bytes]:
        """The engine for a request's `model`, and the request with the id that this engine serves under."""
        try:
            body = parse_body(raw)
        except BodyError as error:
            raise ApiError(400, str(error), code="invalid_body") from None
        upstream = self._models.get(body.model)
        if upstream is None:
            raise unknown_model(body.model, self._models)
        return upstream, body.with_model(upstream.model_id)

    async def _connect(self, upstream: Upstream, scope: Scope, body: bytes, request_id: bytes) -> ClientResponse:
        """Sends the request and returns when the head of the response has come."""
        query = scope["query_string"].decode("latin-1")
        # `encoded` keeps the path and the query as the client wrote them.
        url = URL(f"{upstream.base_url}{scope['path']}{'?' if query else ''}{query}", encoded=True)
        headers = to_engine(scope["headers"], request_id)
        # aiohttp writes bytes at one go, and a file in pieces between which others get their turn.
        data = body if len(body) <= _WRITTEN_AT_ONCE else io.BytesIO(body)
        try:
            return await self.session.post(url, data=data, headers=headers, allow_redirects=False)
        except SocketTimeoutError:
            _logger.warning("variant %s: no answer from %s in time", upstream.variant, upstream.base_url)
            message = f"Variant {upstream.variant} did not answer in time."
            raise ApiError(504, message, code="variant_timeout") from None
        except ClientError as error:
            _logger.warning("variant %s: %s: %r", upstream.variant, upstream.base_url, error)
            message = f"Variant {upstream.variant} is unavailable: its engine cannot be reached. Try again shortly."
            raise ApiError(503, message, code="variant_unavailable", headers=[(b"retry-after", b"1")]) from None


async def _relay(response: ClientResponse, exchange: _Exchange) -> None:
    """Passes the response on, each chunk as the bytes that arrived.

    Where the engine fails on the way, a stream ends with an error event; any other answer is left incomplete,
    upon which the server breaks the connection, so that the client does not take a part for the whole.
    """
    headers = to_client(response.raw_headers, exchange.own_headers)
    exchange.status = response.status
    send, variant = exchange.send, exchange.upstream.variant
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    chunk = b""
    first = True
    try:
        async for chunk in response.content.iter_any():
            if first:
                exchange.metrics.first_byte.observe(perf_counter() - exchange.started)
                first = False
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        last = b""
    except ClientError as error:
        _logger.warning("variant %s: failed in the middle of a response: %r", variant, error)
        if response.content_type != "text/event-stream" or find_header(headers, b"content-length"):
            return
        message = f"Variant {variant} failed in the middle of this response."
        last = b"data: " + ApiError(502, message, code="variant_failed").body + b"\n\n"
        if chunk and not chunk.endswith((b"\n\n", b"\r\n\r\n")):
            # Ends the event that was cut short, or it would swallow this one.
            last = b"\n\n" + last
    exchange.complete = True
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    declared = find_header(scope["headers"], b"content-length")
    if declared and int(declared) > BODY_LIMIT:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientLeftError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > BODY_LIMIT:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large() -> ApiError:
    # The rest stays unread, so the connection cannot carry another request.
    return ApiError(
        413,
        f"The request body is larger than {BODY_LIMIT} bytes.",
        code="request_too_large",
        headers=[(b"connection", b"close")],
    )


def unknown_model(model: str, known: dict[str, Upstream]) -> ApiError:
    """Names every model that is served."""
    message = f"The model `{model}` does not exist. Known models: {', '.join(known)}."
    return ApiError(404, message, code="model_not_found", param="model")
