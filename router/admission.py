"""Turns a key and its limits into a reservation, and the reservation into what was used."""

import logging
from time import monotonic

from router.choice import Demand, cost
from router.demand import Class, Headed
from router.errors import ApiError, Headers
from router.exchange import Exchange
from router.limits import Key, Refusal, Store, StoreUnavailable
from router.observe import Observer
from router.record import NOTHING

_logger = logging.getLogger(__name__)


class Admission:
    """Who may send, and how much. With `auth: off` anyone may, and nothing is counted."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer

    async def authenticate(self, request: Headed) -> Key:
        """The key that a request was sent with.

        Raises:
            ApiError: 401, there is none, or none that is valid.
        """
        secret = _secret(request)
        key = await self._store.authenticate(secret) if secret else None
        if key is None:
            message = "No valid API key: send `Authorization: Bearer KEY` with a key that an administrator has made."
            raise ApiError(401, message, code="invalid_api_key", headers=[(b"www-authenticate", b"Bearer")])
        return key

    async def reserve(self, exchange: Exchange, model: str, demand: Demand, scheduling: Class) -> None:
        """Takes what the request may come to from its key's limits.

        Raises:
            ApiError: 403, the key may not use this model or lane; 429, a limit is reached.
        """
        key, entry = exchange.key, exchange.entry
        if key is None or entry is None:
            return
        if not key.allows(model):
            raise ApiError(403, f"This key may not use the model `{model}`.", code="model_not_allowed", param="model")
        if scheduling.lane not in key.lanes:
            raise ApiError(403, f"This key may not use the lane {scheduling.lane}.", code="lane_not_allowed")
        expected = entry.model.expected_usage(demand)
        worst = entry.model.highest_cost(demand, monotonic())
        reserved = await self._store.reserve(key, tokens=expected.total, cost=worst, now=monotonic())
        if isinstance(reserved, Refusal):
            self._observer.limits_refused(reserved.code)
            retry_after = b"%d" % max(1, int(reserved.retry_after_s + 0.999))
            raise ApiError(429, reserved.message, code=reserved.code, headers=[(b"retry-after", retry_after)])
        exchange.reservation = reserved

    async def settle(self, exchange: Exchange) -> None:
        """Replaces the reservation by what was used, and writes that into the record."""
        record, usage = exchange.record, exchange.usage or NOTHING
        record.usage = exchange.usage
        record.spent_tokens, record.cost = exchange.spent.total, exchange.spent_cost
        if exchange.usage is not None and exchange.decision is not None:
            record.cost += cost(exchange.decision.prices, usage)
        reservation = exchange.reservation
        if reservation is None:
            return
        try:
            if exchange.sent_at is None:
                await self._store.cancel(reservation, count_request=False)
            else:
                await self._store.settle(reservation, tokens=usage.total + exchange.spent.total, cost=record.cost)
        except StoreUnavailable as error:
            # The reservation ends by itself, charged in full.
            _logger.error("a request of %s is not settled: %s", reservation.key_id, error)


def rate_limit_headers(exchange: Exchange) -> Headers:
    """What is left of the key's limits, in OpenAI's headers."""
    reservation = exchange.reservation
    if reservation is None:
        return []
    headers: Headers = []
    if reservation.limit_requests is not None:
        headers.append((b"x-ratelimit-limit-requests", b"%d" % reservation.limit_requests))
        headers.append((b"x-ratelimit-remaining-requests", b"%d" % (reservation.remaining_requests or 0)))
    if reservation.limit_tokens is not None:
        headers.append((b"x-ratelimit-limit-tokens", b"%d" % reservation.limit_tokens))
        headers.append((b"x-ratelimit-remaining-tokens", b"%d" % (reservation.remaining_tokens or 0)))
    if headers and reservation.reset_s is not None:
        headers.append((b"x-ratelimit-reset", b"%.3fs" % reservation.reset_s))
    return headers


def _secret(request: Headed) -> str | None:
    """From `Authorization: Bearer`, or Anthropic's `x-api-key`."""
    given = request.header(b"authorization")
    if given is not None:
        scheme, _, secret = given.partition(b" ")
        return secret.strip().decode("latin-1") if scheme.lower() == b"bearer" else None
    key = request.header(b"x-api-key")
    return key.decode("latin-1") if key is not None else None
