"""A router and the engines behind it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtests.mock_engine import MockEngine
from router.config import RouterConfig, parse_config
from tests.servers import AppServer, RouterServer, wait_until

NAME = "acme/tiny-7b"


@dataclass
class Stack:
    """A router of the model NAME and the mock engines behind it.

    The first of each variant has the variant's name, the second `VARIANT-2`, and so on.
    """

    router: RouterServer
    engines: dict[str, AppServer]
    apps: dict[str, MockEngine]

    def metric(self, name: str, **labels: str) -> float | None:
        """The sum of the samples that have these labels, among others; None where there is none."""
        values = [
            sample.value
            for family in text_string_to_metric_families(self.router.request("GET", "/metrics").body.decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else None

    def ready(self, variant: str) -> bool:
        return bool(self.router.request("GET", "/health").json["models"][NAME][variant])

    def restart(self, variant: str) -> None:
        self.engines[variant] = AppServer(self.apps[variant], self.engines[variant].port)


@pytest.fixture
def start_stack() -> Iterator[Callable[..., Stack]]:
    """Starts a stack: `change` edits its configuration, a dict; further options are the mock engine's."""
    running: list[RouterServer | AppServer] = []

    def start(
        change: Callable[[dict[str, Any]], None] = lambda _: None, *, replicas: int = 1, **mock_options: Any
    ) -> Stack:
        apps = {
            variant + (f"-{number}" if number > 1 else ""): MockEngine(f"{NAME}:{variant}", **mock_options)
            for variant in ("standard", "fast")
            for number in range(1, replicas + 1)
        }
        engines = {name: AppServer(app) for name, app in apps.items()}
        running.extend(engines.values())
        named = [f"{name.partition('-')[0]}={engine.url}" for name, engine in engines.items()]
        config = parse_config(NAME, named).model_dump()
        config["fleet"]["poll_interval"] = 0.05
        config["fleet"]["slow_start"] = 0
        change(config)
        router = RouterServer(RouterConfig.model_validate(config))
        running.append(router)
        return Stack(router, engines, apps)

    yield start
    # The routers first: they close their connections in order.
    for server in reversed(running):
        server.stop()


@pytest.fixture
def stack(start_stack: Callable[..., Stack]) -> Stack:
    """Both variants up, engines without delay."""
    return start_stack()


@pytest.fixture
def paced_stack(start_stack: Callable[..., Stack]) -> Stack:
    """As `stack`, with 20 ms between tokens, so that each reaches the router by itself."""
    return start_stack(itl=0.02)


@pytest.fixture
def start_router() -> Iterator[Callable[..., RouterServer]]:
    """Starts a router in front of the given engines, `VARIANT=URL` each."""
    running: list[RouterServer] = []

    def start(*engines: str) -> RouterServer:
        running.append(RouterServer(parse_config(NAME, engines)))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def eventually() -> Callable[..., bool]:
    return wait_until
