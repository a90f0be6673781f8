"""What a sample holds, against a mock engine through the real client, and in which order samples are taken."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from evals import speed
from evals.speed import Sample
from evals.workloads import Prompt, Workload
from loadtests.mock_engine import MockEngine
from twinspeed.errors import TwinspeedError

pytestmark = pytest.mark.unit

PROMPT = Prompt(id="greet", prompt="Hello", max_tokens=10)
USAGE = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
ClientOf = Callable[[str], openai.OpenAI]


def chunk(content: str | None = None, *, model: str = "tiny:fast", **more: Any) -> dict[str, Any]:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
        "choices": choices,
        **more,
    }


def ask(client: openai.OpenAI) -> Sample:
    return speed.ask(client, "tiny", "fast", "chat", PROMPT, round_number=0)


def no_progress(fraction: float, detail: str) -> None:
    assert 0 <= fraction < 1


@pytest.mark.parametrize("tokens_per_chunk", [1, 4])
def test_tokens_are_counted_by_usage_and_not_by_chunks(
    serve: Callable[..., str], client_of: ClientOf, tokens_per_chunk: int
) -> None:
    sample = ask(client_of(serve(MockEngine("tiny:fast", tokens_per_chunk=tokens_per_chunk))))
    assert sample.output_tokens == 10
    assert sample.text == "".join(f"w{index} " for index in range(10))
    assert sample.token_ids == tuple(range(1000, 1010))
    assert sample.prompt_token_ids == (104578,)
    assert (sample.workload, sample.variant, sample.prompt_id, sample.round) == ("chat", "fast", "greet", 0)


def test_the_clock_starts_before_the_request_and_stops_after_the_last_token(
    serve: Callable[..., str], client_of: ClientOf
) -> None:
    sample = ask(client_of(serve(MockEngine("tiny:fast", ttft=0.05, itl=0.01))))
    assert sample.ttft_s >= 0.05
    assert sample.e2e_s >= 0.05 + 9 * 0.01


def test_the_formulas(make_sample: Callable[..., Sample]) -> None:
    sample = make_sample(output_tokens=21, ttft_s=0.5, e2e_s=2.5)
    assert sample.tokens_per_s == pytest.approx(21 / 2.5)
    assert sample.tpot_s == pytest.approx(2.0 / 20)


def test_another_variants_answer_is_refused(
    serve: Callable[..., str], client_of: ClientOf, scripted: Callable[..., Any]
) -> None:
    stub = scripted([chunk("Hi", model="tiny:standard"), chunk(usage=USAGE, model="tiny:standard")])
    with pytest.raises(TwinspeedError, match="asked for tiny:fast, but tiny:standard answered"):
        ask(client_of(serve(stub)))


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        (None, "'greet' without usage"),
        ({"prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1}, "'greet' without a token"),
    ],
)
def test_an_answer_that_cannot_be_counted_is_refused(
    serve: Callable[..., str], client_of: ClientOf, scripted: Callable[..., Any], usage: Any, message: str
) -> None:
    with pytest.raises(TwinspeedError, match=message):
        ask(client_of(serve(scripted([chunk("Hi"), chunk(usage=usage)]))))


def test_requests_are_greedy_and_no_repetition_can_hit_the_prefix_cache(
    serve: Callable[..., str], client_of: ClientOf, scripted: Callable[..., Any]
) -> None:
    stub = scripted([chunk("Hi"), chunk(usage=USAGE)])
    client = client_of(serve(stub))
    for _ in range(3):
        ask(client)
    assert len({body["cache_salt"] for body in stub.asked}) == 3
    for body in stub.asked:
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("tiny:fast", 0, 10)
        assert body["stream_options"] == {"include_usage": True}
        assert body["return_token_ids"] is True


@pytest.mark.parametrize("prompts", [2, 3])
def test_variants_take_turns_and_who_goes_first_alternates(router_url: str, client_of: ClientOf, prompts: int) -> None:
    load = Workload("chat", tuple(Prompt(id=f"p{n}", prompt=f"Say {n}", max_tokens=2) for n in range(prompts)))
    samples = speed.measure(client_of(router_url), "tiny", ("standard", "fast"), [load], 2, no_progress)
    turns = [samples[start : start + 2] for start in range(0, len(samples), 2)]
    assert all({sample.variant for sample in turn} == {"standard", "fast"} for turn in turns)
    assert all(len({(sample.prompt_id, sample.round) for sample in turn}) == 1 for turn in turns)
    first = {(turn[0].prompt_id, turn[0].round): turn[0].variant for turn in turns}
    assert len(first) == 2 * prompts
    for n in range(prompts):
        assert first[f"p{n}", 0] != first[f"p{n}", 1]
    assert first["p0", 0] != first["p1", 0]
