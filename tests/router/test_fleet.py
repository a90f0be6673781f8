"""The table stays true: replicas found in a cluster live through reloads, and refused settings change nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.config import RouterConfig
from router.discovery import Cluster
from router.fleet import Fleet
from router.observe import Observer
from tests.router.discovery.api_server import ApiServer, slice_of
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"


def settings(usd_per_hour: float = 1.0, **model: Any) -> RouterConfig:
    """`standard` is listed; `fast` is found as the Service `fast`."""
    service = {"namespace": "inference", "service": "fast"}
    variants = {
        "standard": {"replicas": ("http://127.0.0.1:9",)},
        "fast": {"kubernetes": service, "usd_per_hour": usd_per_hour},
    }
    return RouterConfig.model_validate({"auth": "off", "models": ({"name": NAME, "variants": variants, **model},)})


@asynccontextmanager
async def in_cluster(folder: Path) -> AsyncIterator[tuple[Fleet, ApiServer]]:
    """A fleet in whose cluster one replica of `fast` is ready, and known."""
    (folder / "token").write_text("first")
    async with ApiServer().running() as api:
        api.put(slice_of("fast-1", "127.0.0.1"))
        cluster = Cluster(api.url, folder / "token", folder / "ca.crt")
        fleet = Fleet(settings(), Observer(settings()), lambda: cluster)
        await fleet.open()
        try:
            await until(lambda: len(fleet.table.entries[NAME].backends) == 2)
            yield fleet, api
        finally:
            await fleet.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for sets no event)
            await asyncio.sleep(0.002)


def test_a_reload_keeps_the_replicas_that_the_cluster_had_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_cluster(tmp_path) as (fleet, api):
            before = dict(fleet.table.entries[NAME].backends)
            # The API server is out of reach just as another price comes into force.
            api.status = 503
            await fleet.adopt(settings(usd_per_hour=2.0))
            after = fleet.table.entries[NAME].backends
            assert after == before
            assert not any(backend.replica.draining for backend in after.values())
            api.status = None
            api.put(slice_of("fast-1", "127.0.0.1", "127.0.0.2"))
            await until(lambda: len(fleet.table.entries[NAME].backends) == 3)

    asyncio.run(scenario())


def test_settings_that_are_refused_leave_the_table_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        listed = RouterConfig.model_validate(
            {
                "auth": "off",
                "models": ({"name": NAME, "variants": {"standard": {"replicas": ("http://127.0.0.1:9",)}}},),
            }
        )

        def nowhere() -> Cluster:
            return Cluster.of_this_pod({})

        fleet = Fleet(listed, Observer(listed), nowhere)
        await fleet.open()
        table = fleet.table
        with pytest.raises(InputError, match="only inside a cluster"):
            await fleet.adopt(settings())
        with pytest.raises(InputError, match="no-release"):
            await fleet.adopt(
                RouterConfig.model_validate(
                    listed.model_dump() | {"models": (listed.models[0].model_dump() | {"release": "no-release"},)}
                )
            )
        assert fleet.table is table
        await fleet.close()

    asyncio.run(scenario())
