"""What the tests with real engines share: the environments, and releases being served."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tiny_llama
from tests.e2e.front import Account, Front, routing
from tests.e2e.stack import Served, twinspeed, up

# Without compiling, an engine starts fast; the rest lets it do all that clients ask for.
_TINY_ENGINE = (
    "enforce_eager=true",
    "enable_auto_tool_choice=true",
    "tool_call_parser=hermes",
    "enable_prompt_tokens_details=true",
)


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
    arguments = [part for argument in _TINY_ENGINE for part in ("--engine-arg", argument)]
    twinspeed("release", "build", checkpoint, "--out", folder / "release", *arguments)
    return folder / "release"


@pytest.fixture(scope="session")
def tiny(tiny_release: Path) -> Iterator[Served]:
    with up(tiny_release, tiny_release.parent / "logs") as served:
        yield served


@pytest.fixture(scope="session")
def front(tiny: Served, tiny_release: Path) -> Iterator[Front]:
    """A router with keys in front of the same engines."""
    with routing(tiny, tiny_release, tiny_release.parent / "front") as running:
        yield running


@pytest.fixture
def account(front: Front) -> Account:
    """An API key without limits."""
    return front.account()


@pytest.fixture(scope="session")
def smollm2_release(environments: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    twinspeed("checkpoint", "fetch", "smollm2")
    release = tmp_path_factory.mktemp("smollm2") / "release"
    twinspeed("release", "build", "smollm2", "--out", release, "--max-model-len", "2048")
    return release
