"""Requests that are over, and how to read a page of metrics."""

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from router.config import RouterConfig, parse_config
from router.observe import Observer
from router.record import RequestRecord, Usage

NAME = "acme/tiny-7b"
# 2026-01-02 03:04:05.25 UTC
STARTED = 1_767_323_045.25

Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def config(**changes: object) -> RouterConfig:
    return parse_config(NAME, ["standard=http://127.0.0.1:8001"]).model_copy(update=changes)


def record(**changes: Any) -> RequestRecord:
    """A stream that went well, with everything known that can be."""
    whole: dict[str, Any] = {
        "request_id": "r-1",
        "path": "/v1/chat/completions",
        "started_at": STARTED,
        "key_id": "k-1",
        "model": NAME,
        "variant": "fast",
        "replica": "fast-7f3a90c2",
        "reason": "cheapest",
        "lane": "batch",
        "tier": "flex",
        "stream": True,
        "status": 200,
        "attempts": 1,
        "queue_s": 0.75,
        "ttft_s": 0.5,
        "e2e_s": 2.5,
        "usage": Usage(prompt=100, completion=41, cached=64),
        "cost": 1_500_000_000,
        "predicted_ttft_s": 0.25,
        "predicted_e2e_s": 2.5,
        "predicted_cost": 3_000_000_000,
        "slo_ttft_s": 0.4,
        "slo_tpot_s": 0.1,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    return RequestRecord(**(whole | changes))


def refused(**changes: Any) -> RequestRecord:
    """A request of which nothing was learnt but its head."""
    whole: dict[str, Any] = {"request_id": "r-2", "path": "/v1/completions", "started_at": STARTED, "status": 404}
    return RequestRecord(**(whole | {"error": "model_not_found", "e2e_s": 0.001} | changes))


def parse(page: bytes) -> Page:
    return {
        (sample.name.removeprefix("twinspeed_router_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def read(observer: Observer) -> Page:
    return parse(asyncio.run(observer.render()))


def at(page: Page, name: str, **labels: str) -> float | None:
    """A sample's value, None where there is none. `name` comes without the router's prefix."""
    return page.get((name, tuple(sorted(labels.items()))))
