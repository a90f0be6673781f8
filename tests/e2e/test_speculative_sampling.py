"""Sampling under n-gram speculation follows the target's distribution."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import openai
import pytest

from tests.e2e import parity
from tests.e2e.stack import READY_S
from twinspeed import processes, release as releases
from twinspeed.release import EngineSettings

pytestmark = pytest.mark.engine

NAME = "smollm2"


@contextmanager
def engine(release: Path, variant: str, log: Path) -> Iterator[str]:
    """The base URL of one engine of the release, served by `twinspeed serve`."""
    port = processes.free_port()
    command = processes.twinspeed_command("serve", "--release", release, "--variant", variant, "--port", str(port))
    with log.open("wb") as output:
        child = processes.start(command, stdout=output, stderr=output)
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/health", child, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        processes.stop([child], 60)


def _wait_until_healthy(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert child.poll() is None, log.read_text()[-2000:]
        try:
            with urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"no engine at {url}: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def parity_release(smollm2_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fast as it is, and `plain` = the same weights without speculation."""
    folder = tmp_path_factory.mktemp("parity") / "release"
    shutil.copytree(smollm2_release, folder)
    release = releases.load(folder)
    fast = release.variants["fast"]
    eager = EngineSettings(max_model_len=1024, max_num_seqs=16, args={"enforce_eager": True})
    variants = {
        "standard": release.variants["standard"],
        "fast": fast.model_copy(update={"engine": eager}),
        "plain": fast.model_copy(update={"engine": eager, "speculation": None}),
    }
    releases.save(release.model_copy(update={"variants": variants}), folder)
    return folder


@pytest.fixture(scope="module")
def target(parity_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The unspeculated engine, which also reads back what the others sampled."""
    with engine(parity_release, "plain", tmp_path_factory.mktemp("plain") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def reference(target: str) -> dict[parity.Sampling, parity.Scores]:
    return sample(target, "plain", target, parity.SAMPLINGS)


def test_sampled_text_under_speculation_follows_the_target(
    parity_release: Path, target: str, reference: dict[parity.Sampling, parity.Scores], tmp_path: Path
) -> None:
    with engine(parity_release, "fast", tmp_path / "log") as url:
        scores = sample(url, "fast", target, parity.SAMPLINGS)
        assert drafted(url) > 100
    compared = [parity.compare(sampling, reference[sampling], scores[sampling]) for sampling in parity.SAMPLINGS]
    print(*compared, sep="\n")
    assert [found for found in compared if not found.alike] == []


def sample(
    url: str, variant: str, target_url: str, samplings: Sequence[parity.Sampling]
) -> dict[parity.Sampling, parity.Scores]:
    """Scores of what `variant` samples, read back by the target engine."""

    async def all_of_them() -> dict[parity.Sampling, parity.Scores]:
        async with client(url) as sampler, client(target_url) as target:
            return {
                sampling: await parity.sample_and_score(sampler, f"{NAME}:{variant}", target, f"{NAME}:plain", sampling)
                for sampling in samplings
            }

    return asyncio.run(all_of_them())


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", timeout=300)


def drafted(url: str) -> float:
    with urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:spec_decode_num_drafts_total"))
