"""The prompts are many enough to resample, told apart by their ids, and what their workload says they are."""

import pytest

from evals import workloads

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", workloads.NAMES)
def test_prompts_are_many_and_distinct(name: str) -> None:
    load = workloads.load(name)
    assert load.name == name
    assert len(load.prompts) >= 6
    assert len({prompt.id for prompt in load.prompts}) == len(load.prompts)
    assert len({prompt.prompt for prompt in load.prompts}) == len(load.prompts)


def test_an_edit_prompt_holds_the_text_that_its_answer_copies() -> None:
    for prompt in workloads.load("edit").prompts:
        instruction, _, text = prompt.prompt.partition("\n\n")
        assert instruction.endswith(":"), prompt.id
        assert len(text) > len(instruction), prompt.id
        # A token is more than 1.5 characters of such text: the answer has something to copy until its end.
        assert len(text) > 1.5 * prompt.max_tokens, prompt.id
