"""Sampling under n-gram speculation follows the target's distribution; without the plugin it does not."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
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
def three_engines_release(smollm2_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fast as it is, `plain` = the same weights without speculation, `unrepaired` = fast without the plugin."""
    folder = tmp_path_factory.mktemp("parity") / "release"
    shutil.copytree(smollm2_release, folder)
    release = releases.load(folder)
    fast = release.variants["fast"]
    eager = EngineSettings(max_model_len=1024, max_num_seqs=16, args={"enforce_eager": True})
    unrepaired = eager.model_copy(update={"env": {"VLLM_PLUGINS": ""}})
    variants = {
        "standard": release.variants["standard"],
        "fast": fast.model_copy(update={"engine": eager}),
        "plain": fast.model_copy(update={"engine": eager, "speculation": None}),
        "unrepaired": fast.model_copy(update={"engine": unrepaired}),
    }
    releases.save(release.model_copy(update={"variants": variants}), folder)
    return folder


def test_sampled_text_under_speculation_follows_the_target_and_only_with_the_plugin(
    three_engines_release: Path, tmp_path: Path
) -> None:
    name = releases.load(three_engines_release).name
    scores: dict[str, dict[parity.Sampling, parity.Scores]] = {}
    with engine(three_engines_release, "plain", tmp_path / "plain.log") as target_url:

        async def sample(url: str, variant: str) -> dict[parity.Sampling, parity.Scores]:
            async with client(url) as sampler, client(target_url) as target:
                return {
                    sampling: await parity.sample_and_score(
                        sampler, f"{name}:{variant}", target, f"{name}:plain", sampling
                    )
                    for sampling in parity.SAMPLINGS
                }

        scores["plain"] = asyncio.run(sample(target_url, "plain"))
        for variant in ("fast", "unrepaired"):
            with engine(three_engines_release, variant, tmp_path / f"{variant}.log") as url:
                scores[variant] = asyncio.run(sample(url, variant))
                assert _drafted(url) > 100
    for variant in ("fast", "unrepaired"):
        for sampling in parity.SAMPLINGS:
            found = parity.compare(sampling, scores["plain"][sampling], scores[variant][sampling])
            print(
                json.dumps(
                    {
                        "variant": variant,
                        "sampling": str(sampling),
                        "difference": round(found.difference, 3),
                        "z": round(found.z, 2),
                        "improbable_share_difference": round(found.share_difference, 4),
                    }
                )
            )
            assert found.alike == (variant == "fast"), found


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", timeout=300)


def _drafted(url: str) -> float:
    with urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:spec_decode_num_drafts_total"))
