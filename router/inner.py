"""Requests that the router makes of itself, for its batches: through the same door, and on their owner's account."""

import asyncio

from fastapi import Request as ApiRequest

from router.admission import Admission
from router.errors import ApiError
from router.exchange import Answer
from router.gateway import Gateway
from router.http.server import Request
from router.limits import Store, StoreUnavailable

_RETRY = [(b"retry-after", b"1")]


class Inner:
    """Submits requests without a connection."""

    def __init__(self, gateway: Gateway, store: Store) -> None:
        self._gateway = gateway
        self._store = store

    async def submit(
        self, endpoint: str, body: bytes, owner: str | None, request_id: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer. `owner` is the id of the key that pays."""
        headers = [
            (b"content-type", b"application/json"),
            (b"x-request-id", request_id.encode()),
            (b"x-twinspeed-lane", b"batch"),
        ]
        request = Request(b"POST", endpoint.encode(), headers)
        request.body.append(body)
        exchange = self._gateway.begin(request, None)
        if owner is not None:
            try:
                exchange.key = next((key for key in await self._store.list_keys() if key.id == owner), None)
            except StoreUnavailable:
                return _refused(ApiError(503, "Keys cannot be checked now.", code="limits_unavailable", headers=_RETRY))
            if exchange.key is None:
                return _refused(ApiError(401, "The key that made this batch was revoked.", code="invalid_api_key"))
        answers: list[Answer] = []
        await self._gateway.run(exchange, answers.append)
        if not answers:
            # The gateway takes a cancellation for a client that left, and lets it end there.
            raise asyncio.CancelledError
        answer = answers[0]
        return answer.status, _text(answer.headers), answer.body


class Owners:
    """Tells whose files and batches a request of the API is about."""

    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self._gateway = gateway
        self._admission = admission

    async def __call__(self, request: ApiRequest) -> str | None:
        if self._gateway.table.config.auth == "off":
            return None
        return (await self._admission.authenticate(_Headers(request))).id


class _Headers:
    def __init__(self, request: ApiRequest) -> None:
        self._headers = request.headers

    def header(self, wanted: bytes) -> bytes | None:
        value = self._headers.get(wanted.decode())
        return None if value is None else value.encode("latin-1")


def _refused(error: ApiError) -> tuple[int, dict[str, str], bytes]:
    return error.status, _text(error.headers), error.body


def _text(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
