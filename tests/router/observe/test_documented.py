"""docs/router-metrics.md and the code name the same metrics."""

import asyncio
import itertools
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.observe import Observer, families
from tests.router.observe.samples import config, record, refused

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).parents[3] / "docs" / "router-metrics.md"
UNITS = {"_seconds": "seconds", "_usd": "USD", "_usd_total": "USD", "tokens_total": "tokens", "_ratio": "ratio"}


def rows(header: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    lines = DOCUMENT.read_text().splitlines()
    first = lines.index(header) + 2
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_document_lists_the_metrics_as_they_are() -> None:
    listed = [
        (name.strip("`"), kind, tuple(label.strip("` ") for label in labels.split(",")) if labels != "–" else (), text)
        for name, kind, labels, _, text in rows("| metric | type | labels | unit | meaning |")
    ]
    assert listed == [(family.name, family.kind, family.labels, family.help) for family in families.FAMILIES]


def test_units_stand_in_the_names() -> None:
    for name, _, _, unit, _ in rows("| metric | type | labels | unit | meaning |"):
        for ending, expected in UNITS.items():
            if name.strip("`").endswith(ending):
                assert unit == expected
        assert unit


def test_the_document_lists_the_buckets_as_they_are() -> None:
    listed = {name.strip("`"): tuple(map(float, bounds.split(","))) for name, bounds in rows("| metric | bounds |")}
    assert listed == {family.name: family.buckets for family in families.FAMILIES if family.buckets}


def test_every_family_is_declared_once_and_every_declared_one_is_shown() -> None:
    declared = [value for value in vars(families).values() if isinstance(value, families.Family)]
    assert sorted(family.name for family in declared) == sorted(family.name for family in families.FAMILIES)


def test_every_metric_documented_is_seen_on_the_page_with_its_labels() -> None:
    observer = Observer(config())
    observer.observe(record())
    observer.observe(refused())
    observer.started("fast")
    observer.queued("m", "batch", 1)
    observer.replica("fast", "a:1", ready=True, breaker_open=False)
    observer.budget_left("k", "day", 1)
    observer.limits_refused("c")
    observer.shadowed("m", "fast", agreed=True)
    observer.cascaded("m", "accepted")
    page = asyncio.run(observer.render()).decode()
    seen = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type): {
            label for sample in family.samples for label in sample.labels
        }
        - {"le"}
        for family in text_string_to_metric_families(page)
        if family.samples
    }
    assert seen == {(family.name, family.kind): set(family.labels) for family in families.FAMILIES}
