"""What the tests with real engines share: the environments, and releases being served."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tiny_llama
from tests.e2e.stack import Served, twinspeed, up


@pytest.fixture(scope="session")
def environments() -> None:
    """Both heavy environments, made by the command if they are not there yet."""
    twinspeed("env", "create", "engine")
    twinspeed("env", "create", "optimize")


@pytest.fixture(scope="session", params=["tied", "untied"])
def tiny_release(request: pytest.FixtureRequest, environments: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of a tiny random Llama whose engines start without compiling."""
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = tiny_llama.write(folder / "tiny", tied=request.param == "tied")
    twinspeed("release", "build", checkpoint, "--out", folder / "release", "--engine-arg", "enforce_eager=true")
    return folder / "release"


@pytest.fixture(scope="session")
def tiny(tiny_release: Path) -> Iterator[Served]:
    with up(tiny_release, tiny_release.parent / "logs") as served:
        yield served


@pytest.fixture(scope="session")
def smollm2_release(environments: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    twinspeed("checkpoint", "fetch", "smollm2")
    release = tmp_path_factory.mktemp("smollm2") / "release"
    twinspeed("release", "build", "smollm2", "--out", release, "--max-model-len", "2048")
    return release
