"""Keeps the table true: finds replicas, watches them, and builds it anew when the configuration changes."""

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar

from router.backend import Backend, new_backend
from router.choice import Model, Replica
from router.config import ModelSettings, RouterConfig, VariantSettings
from router.discovery import Cluster, Discovery, KubernetesReplicas, StaticReplicas
from router.lanes import Queue
from router.leg import Leg
from router.observe import Observer
from router.table import Entry, Table
from twinspeed import release as releases

_PROBE = ClientTimeout(total=2)

_logger = logging.getLogger(__name__)


class Fleet:
    """Every replica of every model. `table` is what is in force; `cluster` gives the one to find Services in."""

    def __init__(
        self,
        config: RouterConfig,
        observer: Observer,
        cluster: Callable[[], Cluster] = lambda: Cluster.of_this_pod(os.environ),
    ) -> None:
        self.table = Table(config, {})
        self._observer = observer
        self._cluster = cluster
        self._session: ClientSession
        self._finding: dict[tuple[str, str, VariantSettings], asyncio.Task[None]] = {}
        self._watching: dict[Backend, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Looks once at every replica that the configuration lists, so that those that are up serve from the start."""
        self._session = ClientSession(timeout=_PROBE, cookie_jar=DummyCookieJar())
        await self.adopt(self.table.config)
        await asyncio.gather(*(backend.look(self._session) for backend in self._watching))

    async def close(self) -> None:
        tasks = [*self._finding.values(), *self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self.table.entries.values():
            for backend in entry.backends.values():
                backend.pool.close()
        await self._session.close()

    async def adopt(self, config: RouterConfig) -> Table:
        """Builds the table of another configuration, and puts it in force.

        Raises:
            InputError: a release cannot be read, or Services are to be found outside of a cluster; the table before
                stays in force.
        """
        variants = [each for settings in config.models for each in settings.variants.values()]
        cluster = self._cluster() if any(each.kubernetes for each in variants) else None
        entries = {}
        for settings in config.models:
            folder = settings.release
            release = None if folder is None else await asyncio.to_thread(releases.load, Path(folder))
            model = Model(settings, release, slow_start=config.fleet.slow_start)
            before = self.table.entries.get(settings.name)
            if before is None:
                queue: Queue[Leg] = Queue(config.lanes, partial(self._observer.queued, settings.name))
                backends: dict[str, Backend] = {}
            else:
                queue, backends = before.queue, before.backends
                model.take_over(before.model)
            entries[settings.name] = Entry(settings, model, queue, backends)
        gone = [entry for name, entry in self.table.entries.items() if name not in entries]
        self.table = Table(config, entries)
        for entry in entries.values():
            entry.queue.configure(config.lanes)
        for entry in gone:
            self._let_go(list(entry.backends.values()))
        self._find(config, cluster)
        for settings in config.models:
            self._place(settings, entries[settings.name])
        return self.table

    def _find(self, config: RouterConfig, cluster: Cluster | None) -> None:
        """Runs a discovery for each variant that there is; those that stay as they were go on."""
        wanted = {
            (settings.name, variant, each): settings
            for settings in config.models
            for variant, each in settings.variants.items()
        }
        for key in self._finding.keys() - wanted.keys():
            self._finding.pop(key).cancel()
        for key in wanted.keys() - self._finding.keys():
            name, variant, each = key
            discovery: Discovery
            if each.kubernetes is not None and cluster is not None:
                # Those that were found before serve on until the cluster has said which there are.
                discovery = KubernetesReplicas(each.kubernetes, cluster)
            else:
                # Those that are listed are part of the table before the first request comes.
                self._update(name, variant, each, frozenset(each.replicas))
                discovery = StaticReplicas(each.replicas)
            update = partial(self._update, name, variant, each)
            self._finding[key] = asyncio.create_task(discovery.run(update))

    def _update(self, name: str, variant: str, settings: VariantSettings, urls: frozenset[str]) -> None:
        """A discovery has found these replicas of a variant."""
        entry = self.table.entries.get(name)
        if entry is None:
            return
        mine = {url: backend for url, backend in entry.backends.items() if backend.replica.variant == variant}
        self._let_go([backend for url, backend in mine.items() if url not in urls])
        for url in mine.keys() - urls:
            del entry.backends[url]
        for url in urls:
            backend = mine.get(url)
            if backend is None:
                # It may have been another variant's until now.
                self._let_go([entry.backends[url]] if url in entry.backends else [])
                replica = Replica(url, variant, f"{name}:{variant}", max_in_flight=settings.max_in_flight)
                backend = entry.backends[url] = new_backend(replica, self.table.config.breaker)
                self._watching[backend] = asyncio.create_task(self._watch(entry, backend))
            backend.replica.max_in_flight = settings.max_in_flight
            backend.takes_priority = settings.priority_scheduling
            backend.replica.draining = False
        entry.model.set_replicas(backend.replica for backend in entry.backends.values())
        entry.queue.wake()

    def _place(self, settings: ModelSettings, entry: Entry) -> None:
        """Gives a new model the replicas that were there before it."""
        for url, backend in list(entry.backends.items()):
            if backend.replica.variant not in settings.variants:
                self._let_go([backend])
                del entry.backends[url]
            backend.breaker.configure(self.table.config.breaker)
        entry.model.set_replicas(backend.replica for backend in entry.backends.values())
        entry.queue.wake()

    def _let_go(self, backends: list[Backend]) -> None:
        """Gives them nothing more; requests that they have may end."""
        for backend in backends:
            backend.replica.draining = True
            task = self._watching.pop(backend, None)
            if task is not None:
                task.cancel()
            backend.pool.close()
            self._observer.replica_gone(backend.replica.variant, backend.name)
            _logger.warning("%s at %s is gone", backend.replica.model_id, backend.replica.url)

    async def _watch(self, entry: Entry, backend: Backend) -> None:
        while True:
            await backend.look(self._session)
            replica = backend.replica
            self._observer.replica(
                replica.variant, backend.name, ready=replica.ready, breaker_open=replica.breaker_open
            )
            # A replica that came back, or whose breaker lets a trial through, may have a place for those who wait.
            entry.queue.wake()
            await asyncio.sleep(self.table.config.fleet.poll_interval)
