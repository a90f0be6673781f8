"""One Redis and one Postgres for all tests here, and the URL of each kind of store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import postgres_server, redis_server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every kind of store."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/limits.db"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["redis", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """Stores that several processes share."""
    return str(request.getfixturevalue(f"{request.param}_url"))
