"""The whole way on real weights: checkpoint, release, engines, router, official client, clean stop."""

import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.stack import Served, descendants, still_running, twinspeed, up
from twinspeed import release as releases

pytestmark = pytest.mark.engine

# The six tokens "The capital of France is Paris" each lead the runner-up by more than 2 nat in a float32 forward pass,
# so rounding cannot turn them; of the shorter question's answer, the first token is a near-tie.
QUESTION = [{"role": "user", "content": "What is the capital of France, and what is it famous for?"}]
ANSWER = "The capital of France is Paris"


@pytest.fixture(scope="module")
def smollm2(smollm2_release: Path) -> Iterator[Served]:
    with up(smollm2_release, smollm2_release.parent / "logs") as served:
        yield served


@pytest.mark.parametrize("variant", ["standard", "fast"])
def test_answers_truthfully_streaming_and_not(smollm2: Served, variant: str) -> None:
    client = smollm2.client()
    model = f"{smollm2.name}:{variant}"
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=6)
    assert whole.model == model
    assert whole.choices[0].message.content == ANSWER
    text, tokens = "", 0
    for chunk in client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    ):
        assert chunk.model == model
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    assert text == ANSWER
    assert whole.usage is not None
    assert tokens == whole.usage.completion_tokens


def test_measuring_writes_a_report_and_the_evidence(smollm2: Served, smollm2_release: Path, tmp_path: Path) -> None:
    twinspeed(
        "release", "measure", "--release", smollm2_release, "--url", smollm2.url, "--out", tmp_path, "--rounds", 1
    )
    assert (tmp_path / "report.html").stat().st_size > 5000
    variants = releases.verify(smollm2_release, use_cache=True).variants
    for variant in variants.values():
        assert {entry.workload for entry in variant.evidence.speed} == {"chat", "edit", "code"}
    agreement = {
        name: [entry.value for entry in variant.evidence.quality if entry.measure == "top1_agreement"]
        for name, variant in variants.items()
    }
    # The engine's own greedy answers, read back: not quite 1 where prefill and decode round differently.
    assert min(agreement["standard"]) > 0.97
    assert min(agreement["fast"]) > 0.85


def test_stopping_lets_a_stream_finish_and_leaves_no_process(smollm2: Served) -> None:
    chunks = smollm2.client().completions.create(
        model=f"{smollm2.name}:standard",
        prompt="Once upon a time",
        max_tokens=96,
        stream=True,
        extra_body={"ignore_eos": True},
        stream_options={"include_usage": True},
    )
    first = next(iter(chunks))
    assert first.choices
    everyone = [smollm2.process.pid, *descendants(smollm2.process.pid)]
    assert len(everyone) > 8
    smollm2.process.send_signal(signal.SIGTERM)
    usage = None
    for chunk in chunks:
        usage = chunk.usage or usage
    assert usage is not None
    assert usage.completion_tokens == 96
    smollm2.process.wait(90)
    assert still_running(everyone[1:]) == []
    assert smollm2.process.returncode == 0
    with pytest.raises(openai.APIConnectionError):
        smollm2.client().models.list()
