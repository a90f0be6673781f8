"""Sends a share of the requests to a second variant too, and records whether it would have said the same."""

import asyncio
import logging
import random
from dataclasses import replace
from time import perf_counter

from router.body import RequestBody
from router.choice import Demand
from router.demand import Class
from router.dispatch import Dispatcher
from router.errors import ApiError
from router.exchange import Answer, Exchange
from router.observe import Observer
from router.record import RequestRecord
from router.verify import agree

# Shadows under way at once; a request that comes while so many are is not shadowed.
_AT_ONCE = 8
_BACKGROUND = Class("batch", "flex", 60.0)

_logger = logging.getLogger(__name__)


class Shadows:
    """The shadows under way. They take what the lanes with a user leave, and nobody pays or waits for them."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._running: set[asyncio.Task[None]] = set()

    def consider(
        self, dispatcher: Dispatcher, exchange: Exchange, body: RequestBody, demand: Demand, answer: Answer
    ) -> None:
        """Shadows a request that has been answered, if its lot is drawn.

        Only those that are greedy, and not streamed, can be compared: sampling makes two answers differ by itself.
        """
        entry = exchange.entry
        settings = entry.settings.shadow if entry is not None else None
        if (
            settings is None
            or answer.status != 200
            or body.members.get("temperature") != 0
            or exchange.record.variant == settings.variant
            or len(self._running) >= _AT_ONCE
            or random.random() >= settings.share
        ):
            return
        shadow = replace(demand, pin=settings.variant, session=None, max_cost=None)
        task = asyncio.create_task(self._run(dispatcher, exchange, body, shadow, answer.body))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(
        self, dispatcher: Dispatcher, served: Exchange, body: RequestBody, demand: Demand, answer: bytes
    ) -> None:
        record = RequestRecord(f"{served.record.request_id}-shadow", served.record.path, served.record.started_at)
        exchange = Exchange(served.request, record, None, perf_counter(), entry=served.entry)
        try:
            outcome = await dispatcher.run(exchange, body, demand, _BACKGROUND)
        except ApiError as error:
            _logger.info("a shadow was not served: %s", error)
            return
        finally:
            dispatcher.abandon(exchange)
        if outcome.error is None and outcome.status == 200 and served.entry is not None:
            agreed = agree(answer, outcome.body or b"")
            self._observer.shadowed(served.entry.name, demand.pin or "", agreed=agreed)
