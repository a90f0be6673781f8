"""The prompts that speeds are measured on, by kind of work."""

from dataclasses import dataclass
from importlib import resources

import pydantic

NAMES = ("chat", "edit", "code")


class Prompt(pydantic.BaseModel):
    """One request: a single user turn, answered greedily with at most `max_tokens` tokens."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    id: str
    prompt: str
    max_tokens: int = pydantic.Field(gt=0)


@dataclass(frozen=True)
class Workload:
    name: str
    prompts: tuple[Prompt, ...]


def load(name: str) -> Workload:
    """The workload `name`, one of `NAMES`."""
    text = resources.files(__package__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8")
    return Workload(name, tuple(Prompt.model_validate_json(line) for line in text.splitlines()))
