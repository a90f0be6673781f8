"""Only the answer's tokens are scored, from log-probabilities in vLLM's form."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from evals import agreement
from evals.speed import Sample
from twinspeed.errors import TwinspeedError

pytestmark = pytest.mark.unit

ClientOf = Callable[[str], openai.OpenAI]
# As vLLM gives them: none for the first token, and beside a token that is not the most probable one, that one too.
POSITIONS = [
    None,
    {"7": {"logprob": -9.0, "rank": 1, "decoded_token": "prompt"}},
    {"8": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}},
    {
        "9": {"logprob": -2.5, "rank": 3, "decoded_token": "b"},
        "4": {"logprob": -0.25, "rank": 1, "decoded_token": "c"},
    },
]


def completion(positions: Any, model: str = "tiny:fast") -> dict[str, Any]:
    choice = {"index": 0, "text": "x", "finish_reason": "length", "logprobs": None, "prompt_logprobs": positions}
    return {"id": "1", "object": "text_completion", "created": 0, "model": model, "choices": [choice]}


@pytest.fixture
def answer(make_sample: Callable[..., Sample]) -> Sample:
    return make_sample(prompt_token_ids=(6, 7), token_ids=(8, 9), workload="edit", prompt_id="mail")


def test_each_token_of_the_answer_is_scored(
    serve: Callable[..., str], client_of: ClientOf, scripted: Callable[..., Any], answer: Sample
) -> None:
    stub = scripted(completion(POSITIONS))
    scored = agreement.score(client_of(serve(stub)), "tiny", "fast", answer)
    assert (scored.variant, scored.workload, scored.prompt_id) == ("fast", "edit", "mail")
    assert scored.log_probabilities == (-0.5, -2.5)
    assert scored.top1 == (True, False)
    assert stub.asked[0]["prompt"] == [6, 7, 8, 9]
    assert stub.asked[0]["model"] == "tiny:fast"


@pytest.mark.parametrize("positions", [None, POSITIONS[:-1]])
def test_absent_log_probabilities_are_an_error(
    serve: Callable[..., str], client_of: ClientOf, scripted: Callable[..., Any], answer: Sample, positions: Any
) -> None:
    with pytest.raises(TwinspeedError, match="tiny:fast returned no log-probabilities"):
        agreement.score(client_of(serve(scripted(completion(positions)))), "tiny", "fast", answer)


def test_another_variants_score_is_refused(
    serve: Callable[..., str], client_of: ClientOf, scripted: Callable[..., Any], answer: Sample
) -> None:
    stub = scripted(completion(POSITIONS, model="tiny:standard"))
    with pytest.raises(TwinspeedError, match="asked for tiny:fast, but tiny:standard answered"):
        agreement.score(client_of(serve(stub)), "tiny", "fast", answer)


@pytest.mark.parametrize("absent", ["prompt_token_ids", "token_ids"])
def test_an_answer_without_token_ids_is_refused(
    client_of: ClientOf, make_sample: Callable[..., Sample], absent: str
) -> None:
    answer = make_sample(**{absent: ()}, prompt_id="mail")
    with pytest.raises(TwinspeedError, match="tiny:standard returned no token ids with its answer to 'mail'"):
        agreement.score(client_of("http://127.0.0.1:1"), "tiny", "fast", answer)
