"""A batch service over real HTTP, for one test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from router.batches import BatchStore
from tests.router.batches.serving import Running, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "state", poll=0.05) as started:
        yield started


@pytest.fixture
def client(server: Running) -> OpenAI:
    return server.client()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BatchStore]:
    opened = BatchStore(tmp_path)
    opened.open()
    yield opened
    opened.close()
