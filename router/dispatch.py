"""Places a request on a replica, sends it, and tries another one as long as the client has seen nothing."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter

from router.attempts import RetryBudget
from router.body import RequestBody
from router.choice import BUSY, Decision, Demand, cost
from router.config import RouterConfig
from router.demand import Class
from router.errors import ApiError, Headers
from router.events import StreamEditor
from router.exchange import Exchange
from router.headers import to_engine
from router.http.upstream import UpstreamError
from router.leg import Leg
from router.observe import Observer
from router.record import Usage, format_usd
from router.relay import Attempt, Outcome

# An engine's answers after which another replica may do better.
_RETRIED = frozenset((500, 502, 503, 504))
# Streams of these say what they used only if they are asked to.
_USAGE_ON_REQUEST = frozenset(("/v1/chat/completions", "/v1/completions"))
_ASK_USAGE = b'"stream_options":{"include_usage":true}'

_logger = logging.getLogger(__name__)


class Dispatcher:
    """The attempts of all requests under one configuration. `write_head` makes the client's headers of an engine's."""

    def __init__(
        self, config: RouterConfig, observer: Observer, write_head: Callable[[Exchange, int, Headers], Headers]
    ) -> None:
        self._config = config
        self._observer = observer
        self._write_head = write_head
        self._budget = RetryBudget(config.retries)

    async def run(self, exchange: Exchange, body: RequestBody, demand: Demand, scheduling: Class) -> Outcome:
        """The outcome of the last attempt.

        Raises:
            ApiError: no attempt could be made.
        """
        record = exchange.record
        self._budget.request()
        tried: set[str] = set()
        stale = False
        while True:
            record.attempts += 1
            leg = await self._place(exchange, demand, scheduling, tried)
            if self._config.retries.hedge_after is None or record.stream:
                outcome = await self._send(exchange, leg, body, scheduling)
            else:
                outcome, leg = await self._send_hedged(exchange, leg, body, demand, scheduling)
            self._adopt(exchange, leg)
            unreached = outcome.error is not None and outcome.error.status == 503
            if outcome.sent or not (unreached or outcome.status in _RETRIED):
                return outcome
            if outcome.stale and not stale:
                # The engine had closed the connection while it was idle: nothing was tried yet. Believed once, or a
                # request that breaks connections would be sent again for as long as others leave idle ones.
                stale = True
                leg.backend.pool.drop_idle()
                record.attempts -= 1
                continue
            if record.attempts >= self._config.retries.attempts or not self._budget.take():
                return outcome
            self._observer.retried()
            tried.add(leg.backend.replica.url)
            await asyncio.sleep(self._budget.backoff(record.attempts))

    async def _place(self, exchange: Exchange, demand: Demand, scheduling: Class, tried: set[str]) -> Leg:
        """Takes a place on a replica, waiting for one if need be."""
        entry, lane = exchange.entry, scheduling.lane
        assert entry is not None

        def take() -> Leg | None:
            return self._take(exchange, demand, tried) if entry.has_room(lane) else None

        leg = None if entry.queue.others_first(lane) else take()
        if leg is None:
            since = perf_counter()
            deadline = asyncio.get_running_loop().time() + (demand.slo_ttft_s or scheduling.patience)
            kind = (demand.pin, demand.needs, frozenset(tried))
            give_back = partial(self.leave, exchange, failed=None)
            leg = await entry.queue.wait(lane, deadline, kind, take, give_back)
            exchange.record.queue_s += perf_counter() - since
        self._adopt(exchange, leg)
        return leg

    def _take(self, exchange: Exchange, demand: Demand, tried: set[str]) -> Leg | None:
        """A place that is free now, if there is one."""
        entry, now = exchange.entry, monotonic()
        assert entry is not None
        decision = entry.model.choose(demand, now, tried)
        if decision is BUSY:
            return None
        backend = entry.backends[decision.replica.url]
        backend.replica.in_flight += 1
        backend.breaker.sent()
        backend.refresh(now)
        self._observer.started(decision.replica.variant)
        leg = Leg(decision, backend)
        exchange.legs.append(leg)
        return leg

    def _adopt(self, exchange: Exchange, leg: Leg) -> None:
        """Makes this leg the one that the record tells of."""
        record, decision = exchange.record, leg.decision
        exchange.decision = decision
        record.variant, record.replica, record.reason = decision.replica.variant, leg.backend.name, decision.reason
        record.predicted_ttft_s, record.predicted_e2e_s = decision.predicted_ttft_s, decision.predicted_e2e_s
        record.predicted_cost = decision.predicted_cost

    async def _send(self, exchange: Exchange, leg: Leg, body: RequestBody, scheduling: Class) -> Outcome:
        """Sends the request on a leg, which ends with it."""
        request, record, replica = exchange.request, exchange.record, leg.backend.replica
        timeouts = self._config.lanes.named(scheduling.lane).timeouts
        hide_usage = record.stream and request.path in _USAGE_ON_REQUEST and _usage_unasked(body)
        members = [_ASK_USAGE] if hide_usage else []
        if leg.backend.takes_priority and scheduling.priority and "priority" not in body.members:
            members.append(b'"priority":%d' % scheduling.priority)
        data = body.with_model(replica.model_id, b",".join(members))
        editor = None
        if hide_usage or (record.stream and exchange.comments_cost):
            comment = partial(_cost_comment, leg.decision) if exchange.comments_cost else None
            editor = StreamEditor(hide_usage=hide_usage, comment=comment)
        try:
            connection = leg.backend.pool.take_idle() or await leg.backend.pool.connect(timeouts.connect)
        except UpstreamError as error:
            _logger.warning("%s at %s: %s", replica.model_id, replica.url, error)
            self.leave(exchange, leg, failed=True)
            message = f"Variant {replica.variant} is unavailable: its engine cannot be reached. Try again shortly."
            retry_after = [(b"retry-after", b"1")]
            return Outcome(error=ApiError(503, message, code="variant_unavailable", headers=retry_after))
        own: Headers = [(b"x-request-id", record.request_id.encode("latin-1"))]
        given = request.header(b"traceparent")
        traceparent = self._observer.traceparent(record, given) or given
        if traceparent is not None:
            own.append((b"traceparent", traceparent))
        head = to_engine(request.headers, leg.backend.pool.authority, len(data), own)
        attempt = leg.attempt = Attempt(
            replica.variant,
            exchange.downstream,
            partial(self._write_head, exchange),
            timeouts,
            editor=editor,
            prompt_tokens=leg.decision.prompt_tokens,
        )
        if exchange.sent_at is None:
            exchange.sent_at = perf_counter()
            self._observer.sent(exchange.overhead_s or 0.0)
        attempt.start(connection, b"".join((b"POST ", request.target, b" HTTP/1.1\r\n", *head, data)))
        outcome = await attempt.done
        if outcome.error is not None:
            _logger.warning("%s at %s: %s", replica.model_id, replica.url, outcome.error)
        failed = outcome.error is not None or outcome.status >= 500
        self.leave(exchange, leg, failed=None if outcome.stale else failed)
        return outcome

    async def _send_hedged(
        self, exchange: Exchange, leg: Leg, body: RequestBody, demand: Demand, scheduling: Class
    ) -> tuple[Outcome, Leg]:
        """Sends a second leg where the first takes long; the first good outcome counts, and the other leg ends."""
        first = asyncio.create_task(self._send(exchange, leg, body, scheduling))
        legs = {first: leg}
        try:
            await asyncio.wait(legs, timeout=self._config.retries.hedge_after)
            if not first.done() and self._budget.take():
                second = self._take_other(exchange, demand, leg)
                if second is not None:
                    self._observer.retried()
                    legs[asyncio.create_task(self._send(exchange, second, body, scheduling))] = second
            pending = set(legs)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    outcome = task.result()
                    if not pending or (outcome.error is None and outcome.status < 500):
                        return outcome, legs[task]
            raise AssertionError("a leg always has an outcome")
        finally:
            for task, each in legs.items():
                if not task.done():
                    self._end(exchange, each)
                    task.cancel()
            await asyncio.gather(*legs, return_exceptions=True)

    def _take_other(self, exchange: Exchange, demand: Demand, leg: Leg) -> Leg | None:
        """A place on another replica, if there is one."""
        try:
            other = self._take(exchange, demand, {leg.backend.replica.url})
        except ApiError:
            return None
        if other is not None and other.backend is leg.backend:
            self.leave(exchange, other, failed=None)
            return None
        return other

    def _end(self, exchange: Exchange, leg: Leg) -> None:
        """Ends a leg whose answer nobody waits for any more; what it has used is spent."""
        if leg.attempt is not None:
            usage = leg.attempt.abandon().usage or Usage(0, 0)
            exchange.spend(usage, cost(leg.decision.prices, usage))
        self.leave(exchange, leg, failed=None)

    def leave(self, exchange: Exchange, leg: Leg, *, failed: bool | None) -> None:
        """Gives a leg's place back, once. `failed` is None where the engine has shown neither."""
        if leg.left:
            return
        leg.left = True
        exchange.legs.remove(leg)
        backend, now = leg.backend, monotonic()
        backend.replica.in_flight -= 1
        if failed is None:
            backend.breaker.undecided()
        elif failed:
            backend.breaker.failed(now)
        else:
            backend.breaker.succeeded()
        backend.refresh(now)
        self._observer.ended(backend.replica.variant)
        assert exchange.entry is not None
        exchange.entry.queue.wake()

    def abandon(self, exchange: Exchange) -> None:
        """Ends all legs, of a client that has left; says what was made for it, as far as can be known."""
        for leg in list(exchange.legs):
            attempt, decision = leg.attempt, leg.decision
            if attempt is not None and exchange.sent_at is not None:
                outcome = attempt.abandon()
                usage = outcome.usage or Usage(decision.prompt_tokens, 0)
                if outcome.first_byte is not None:
                    exchange.record.ttft_s = outcome.first_byte - exchange.started
                elif decision.predicted_tpot_s > 0:
                    # Where no token can be seen, the time says how many there may be.
                    worked = max(0.0, perf_counter() - exchange.sent_at - decision.predicted_ttft_s)
                    tokens = min(decision.expected.completion, int(worked / decision.predicted_tpot_s))
                    usage = Usage(usage.prompt, max(usage.completion, tokens))
                if exchange.usage is None:
                    exchange.usage = usage
                else:
                    exchange.spend(usage, cost(decision.prices, usage))
            self.leave(exchange, leg, failed=None)


def _cost_comment(decision: Decision, usage: Usage) -> bytes:
    return b": x-twinspeed-cost-usd: %b\n\n" % format_usd(cost(decision.prices, usage))


def _usage_unasked(body: RequestBody) -> bool:
    options = body.members.get("stream_options")
    # A client that knows of these options and combines them otherwise is left alone.
    return not isinstance(options, dict) or not options
