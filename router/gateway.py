"""The way of one request, from the whole of it read to the whole of it settled."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, perf_counter, time

from router.admission import Admission, rate_limit_headers
from router.body import BodyError, RequestBody, parse_body
from router.choice import Demand, cost
from router.config import Cascade
from router.demand import Class, read_class, read_demand
from router.dispatch import Dispatcher
from router.errors import ApiError, Headers
from router.exchange import Answer, Exchange
from router.headers import to_client
from router.http.server import Request
from router.idempotency import Idempotency
from router.limits import StoreUnavailable
from router.observe import Observer
from router.record import NOTHING, RequestRecord, Usage, format_usd
from router.relay import Downstream, Outcome
from router.shadow import Shadows
from router.table import Table
from router.verify import accepts

# What nginx logs for a client that left before it was answered; never sent.
CLIENT_LEFT = 499
_TICK = 0.25
_ID_LENGTH = 200

_logger = logging.getLogger(__name__)


class Gateway:
    """Answers requests by the table in force. All that a request holds is in its exchange."""

    def __init__(self, table: Table, admission: Admission, observer: Observer) -> None:
        self.table = table
        self.exchanges: set[Exchange] = set()
        self._observer = observer
        self._admission = admission
        self._dispatcher = Dispatcher(table.config, observer, self._write_head)
        self._shadows = Shadows(observer)
        self._idempotency = Idempotency()
        self._ticker: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._ticker = asyncio.create_task(self._tick())

    async def close(self) -> None:
        await self._shadows.close()
        if self._ticker is not None:
            self._ticker.cancel()

    def adopt(self, table: Table) -> None:
        """Lets new requests go by another table; those on their way keep what they hold."""
        self.table = table
        self._dispatcher = Dispatcher(table.config, self._observer, self._write_head)

    def begin(self, request: Request, downstream: Downstream | None) -> Exchange:
        """An exchange for a request that has been read whole."""
        given = (request.header(b"x-request-id") or b"").decode("latin-1")
        request_id = given if 0 < len(given) <= _ID_LENGTH and given.isprintable() else os.urandom(16).hex()
        record = RequestRecord(request_id, request.path, time())
        return Exchange(request, record, downstream, perf_counter())

    async def run(self, exchange: Exchange, respond: Callable[[Answer], None]) -> None:
        """Answers by `respond`, or by the exchange's downstream; whatever happens, nothing stays held.

        Cancelled, it takes the client to have left, and returns.
        """
        record = exchange.record
        self.exchanges.add(exchange)
        try:
            answer = await self._answer(exchange)
            if answer is not None:
                record.status = answer.status
                respond(answer)
        except ApiError as error:
            respond(self._refusal(exchange, error))
        except StoreUnavailable as error:
            _logger.error("keys and limits: %s", error)
            message = "Keys and limits cannot be checked now. Try again shortly."
            unavailable = ApiError(503, message, code="limits_unavailable", headers=[(b"retry-after", b"1")])
            respond(self._refusal(exchange, unavailable))
        except asyncio.CancelledError:
            record.client_left = True
            record.status = record.status or CLIENT_LEFT
        except Exception:
            # A fault of ours. The client is told, or at least does not take a part for the whole.
            _logger.exception("request %s failed in the router", record.request_id)
            if not record.status:
                failure = ApiError(500, "The router failed on this request.", code="internal_server_error")
                respond(self._refusal(exchange, failure))
            elif exchange.downstream is not None:
                exchange.downstream.abort()
        finally:
            self.exchanges.discard(exchange)
            self._dispatcher.abandon(exchange)
            record.e2e_s = perf_counter() - exchange.started
            try:
                await self._admission.settle(exchange)
            finally:
                self._observer.observe(record)

    def _refusal(self, exchange: Exchange, error: ApiError) -> Answer:
        exchange.record.status, exchange.record.error = error.status, error.code
        fixed = [(b"content-type", b"application/json"), *self._own_headers(exchange)]
        return Answer(error.status, fixed + error.headers, error.body)

    async def _answer(self, exchange: Exchange) -> Answer | None:
        """The whole answer, or None where it has been streamed."""
        request, record = exchange.request, exchange.record
        if exchange.key is None and self.table.config.auth == "required":
            exchange.key = await self._admission.authenticate(request)
        record.key_id = exchange.key.id if exchange.key is not None else None
        body = self._read(request)
        claim = await self._idempotency.claim(request, body, record.key_id or "")
        if claim is None:
            return await self._answer_anew(exchange, body)
        if isinstance(claim, Answer):
            record.reason = "idempotent_replay"
            return claim
        answer, good = None, False
        try:
            answer = await self._answer_anew(exchange, body)
            good = record.status == 200 and record.error is None
        finally:
            self._idempotency.end(claim, answer, good=good)
        return answer

    async def _answer_anew(self, exchange: Exchange, body: RequestBody) -> Answer | None:
        request, record = exchange.request, exchange.record
        entry, pin, goal = self.table.resolve(body.model)
        exchange.entry = entry
        scheduling = read_class(request, body)
        demand = read_demand(request, body, pin=pin, goal=goal)
        if demand.session is not None and exchange.key is not None:
            # One key's sessions must not meet another's.
            demand.session = f"{exchange.key.id}/{demand.session}"
        record.model, record.lane, record.tier = entry.name, scheduling.lane, scheduling.tier
        record.stream = body.members.get("stream") is True
        record.slo_ttft_s, record.slo_tpot_s = demand.slo_ttft_s, demand.slo_tpot_s
        await self._admission.reserve(exchange, body.model, demand, scheduling)
        cascade = entry.settings.cascade
        if cascade is not None and pin is None and goal == "policy" and not record.stream:
            outcome = await self._cascade(exchange, cascade, body, demand, scheduling)
        else:
            outcome = await self._dispatcher.run(exchange, body, demand, scheduling)
        answer = self._conclude(exchange, outcome)
        if answer is not None:
            self._shadows.consider(self._dispatcher, exchange, body, demand, answer)
        return answer

    async def _cascade(
        self, exchange: Exchange, cascade: Cascade, body: RequestBody, demand: Demand, scheduling: Class
    ) -> Outcome:
        """The first variant's answer where the verifier takes it, or else the other's."""
        record = exchange.record
        exchange.downstream = None
        try:
            outcome = await self._dispatcher.run(exchange, body, replace(demand, pin=cascade.first), scheduling)
        except ApiError:
            verdict = "failed"
        else:
            verdict = "failed" if outcome.error is not None or outcome.status >= 500 else "rejected"
            usage, decision = outcome.usage or NOTHING, exchange.decision
            if outcome.status >= 400 and verdict == "rejected":
                # The request's own fault: another variant would refuse it too.
                return outcome
            if verdict == "rejected" and await accepts(cascade, body, outcome.body or b""):
                verdict = "accepted"
            if decision is not None and verdict != "accepted":
                exchange.spend(usage, cost(decision.prices, usage))
        self._observer.cascaded(exchange.record.model or "", verdict)
        if verdict != "accepted":
            record.attempts = 0
            outcome = await self._dispatcher.run(exchange, body, replace(demand, pin=cascade.then), scheduling)
        record.reason = f"cascade_{verdict}"
        return outcome

    def _read(self, request: Request) -> RequestBody:
        try:
            body = parse_body(b"".join(request.body))
        except BodyError as error:
            raise ApiError(400, str(error), code="invalid_body") from None
        messages, limit = body.members.get("messages"), self.table.config.limits.messages
        if isinstance(messages, list) and len(messages) > limit:
            raise ApiError(400, f"`messages` holds more than {limit}.", code="too_many_messages", param="messages")
        return body

    def _conclude(self, exchange: Exchange, outcome: Outcome) -> Answer | None:
        record, decision = exchange.record, exchange.decision
        exchange.usage = outcome.usage
        if outcome.first_byte is not None:
            record.ttft_s = outcome.first_byte - exchange.started
        if outcome.error is not None and not outcome.sent:
            raise outcome.error
        record.status = outcome.status
        if outcome.error is None and outcome.usage is not None:
            _learn(exchange, outcome, outcome.usage)
        if outcome.sent:
            record.error = outcome.error.code if outcome.error is not None else None
            return None
        headers = self._write_head(exchange, outcome.status, outcome.headers or [])
        if outcome.usage is not None and decision is not None:
            headers.append((b"x-twinspeed-cost-usd", format_usd(cost(decision.prices, outcome.usage))))
        return Answer(outcome.status, headers, outcome.body or b"")

    def _write_head(self, exchange: Exchange, status: int, engine_headers: Headers) -> Headers:
        """The client's headers for an engine's answer."""
        exchange.record.status = status
        return to_client(engine_headers, self._own_headers(exchange))

    def _own_headers(self, exchange: Exchange) -> Headers:
        record = exchange.record
        headers: Headers = [(b"x-request-id", record.request_id.encode("latin-1")), (b"x-accel-buffering", b"no")]
        if record.variant is not None and record.replica is not None and record.reason is not None:
            headers += [
                (b"x-twinspeed-variant", record.variant.encode()),
                (b"x-twinspeed-replica", record.replica.encode()),
                (b"x-twinspeed-reason", record.reason.encode()),
                (b"x-twinspeed-service-tier", record.tier.encode()),
            ]
        if exchange.overhead_s is not None:
            headers.append((b"x-twinspeed-overhead-ms", b"%.3f" % (exchange.overhead_s * 1000)))
        return headers + rate_limit_headers(exchange)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK)
            now = loop.time()
            for exchange in list(self.exchanges):
                for leg in list(exchange.legs):
                    if leg.attempt is not None:
                        leg.attempt.tick(now)


def _learn(exchange: Exchange, outcome: Outcome, usage: Usage) -> None:
    """Lets the choice compare what it predicted with what was."""
    entry, decision, sent, first = exchange.entry, exchange.decision, exchange.sent_at, outcome.first_byte
    if entry is None or decision is None or sent is None or first is None:
        return
    ttft = tpot = None
    if outcome.sent and exchange.record.attempts == 1:
        ttft = first - sent
        if usage.completion > 1:
            tpot = (perf_counter() - first) / (usage.completion - 1)
    entry.model.observe(decision, usage, ttft_s=ttft, tpot_s=tpot, now=monotonic())
