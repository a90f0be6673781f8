"""One router process: opens what it needs, serves until it is told to stop, and closes in the opposite order."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from fastapi import APIRouter

from router.admin import create_admin
from router.admission import Admission
from router.api import AsgiApp, PublicApp, create_rest
from router.batches import BatchService, create_routes
from router.config import RouterConfig
from router.fleet import Fleet
from router.gateway import Gateway
from router.http.server import Server
from router.inner import Inner, Owners
from router.lanes import ORDER
from router.limits import StoreUnavailable, open_store
from router.observe import Observer
from router.settings.watch import ConfigWatcher

# Seconds that running streams get to finish once the router is told to stop.
_GRACE = 30.0
_BUDGETS_EVERY = 10.0
_LEASE_MARGIN = 60.0

_logger = logging.getLogger(__name__)


class Router:
    """Everything that one process needs to route. An asynchronous context: open inside, closed outside."""

    def __init__(self, config: RouterConfig, metrics: Path | None = None) -> None:
        """`metrics` is the folder that several workers have in common for theirs."""
        self.config = config
        self._metrics = metrics
        self._stack = AsyncExitStack()
        self._routes: list[APIRouter] = []

    async def __aenter__(self) -> "Router":
        config = self.config
        async with AsyncExitStack() as opening:
            self.store = open_store(config.state.url, lease_ttl_s=_longest_request(config) + _LEASE_MARGIN)
            await self.store.open()
            opening.push_async_callback(self.store.close)
            self.observer = Observer(config, self._metrics)
            await self.observer.open()
            opening.push_async_callback(self.observer.close)
            self.fleet = Fleet(config, self.observer)
            await self.fleet.open()
            opening.push_async_callback(self.fleet.close)
            admission = Admission(self.store, self.observer)
            self.gateway = Gateway(self.fleet.table, admission, self.observer)
            await self.gateway.open()
            opening.push_async_callback(self.gateway.close)
            self._owners = Owners(self.gateway, admission)
            if config.state.folder is not None:
                inner = Inner(self.gateway, self.store)
                batches = BatchService(
                    Path(config.state.folder),
                    inner.submit,
                    concurrency=config.state.batch_requests,
                    max_file_bytes=config.state.file_bytes,
                )
                await batches.open()
                opening.push_async_callback(batches.close)
                self._routes = [create_routes(batches, self._owners)]
            budgets = asyncio.create_task(self._show_budgets())
            opening.callback(budgets.cancel)
            self._stack = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def adopt(self, config: RouterConfig) -> None:
        """Puts another configuration in force, or raises and leaves this one."""
        self.gateway.adopt(await self.fleet.adopt(config))
        self.config = config

    async def _show_budgets(self) -> None:
        """Keeps the metric of what is left of each key's budgets."""
        shown: set[str] = set()
        while True:
            with suppress(StoreUnavailable):
                keys = await self.store.list_keys()
                for gone in shown - {key.id for key in keys}:
                    for period in ("day", "month"):
                        self.observer.key_gone(gone, period)
                shown = {key.id for key in keys}
                for key in keys:
                    used = await self.store.usage(key.id)
                    if used is not None and key.budget_day is not None:
                        self.observer.budget_left(key.id, "day", key.budget_day - used.day_cost)
                    if used is not None and key.budget_month is not None:
                        self.observer.budget_left(key.id, "month", key.budget_month - used.month_cost)
            await asyncio.sleep(_BUDGETS_EVERY)

    def servers(self) -> tuple[Server, Server]:
        """The clients' and the administrators' server, not started."""
        public = PublicApp(self.gateway, create_rest(self.gateway, self.observer, self._owners, *self._routes))
        admin = AsgiApp(create_admin(self))
        return Server(public, header_bytes=self.config.limits.header_bytes), Server(admin)


def _longest_request(config: RouterConfig) -> float:
    """Seconds that a request may hold what it has reserved."""
    lanes = (config.lanes.named(lane) for lane in ORDER)
    return max(lane.max_wait + lane.timeouts.total for lane in lanes)


async def serve(
    config: RouterConfig,
    listener: socket.socket,
    admin: socket.socket | None,
    settings: Path | None = None,
    metrics: Path | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serves on the given sockets until SIGTERM or SIGINT, and calls `ready` once it does.

    On SIGHUP, or when the file `settings` changes, that file is taken over.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    async with Router(config, metrics) as router:
        public_server, admin_server = router.servers()
        watching = None
        if settings is not None:
            watcher = ConfigWatcher(settings, os.environ, config, router.adopt)
            watching = asyncio.create_task(watcher.run())

            def reload() -> None:
                watcher.trigger()
                router.observer.reopen()

            loop.add_signal_handler(signal.SIGHUP, reload)
        await public_server.start(listener)
        if admin is not None:
            await admin_server.start(admin)
        ready()
        await stop.wait()
        if watching is not None:
            watching.cancel()
        await asyncio.gather(public_server.stop(_GRACE), admin_server.stop(_GRACE))
