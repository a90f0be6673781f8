"""The form of `docs/benchmarks/NAME.json`, which every benchmark of this project writes."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from twinspeed.errors import InputError

Key = Annotated[str, Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")]
Text = Annotated[str, Field(min_length=1)]


class Benchmark(BaseModel):
    """Measured figures under flat keys, with what is needed to trust them or to measure them again."""

    # Strict: a figure written as a string, or as true, is a mistake of whoever wrote it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    command: Text
    date: AwareDatetime
    git_sha: str = Field(
        pattern=r"^([0-9a-f]{40}(\+changes)?|unknown)$", description="as `twinspeed.provenance.git_sha` says it"
    )
    machine: Text
    versions: dict[Text, Text] = Field(min_length=1)
    seed: int
    rounds: int = Field(ge=1)
    results: dict[Key, FiniteFloat] = Field(min_length=1)
    intervals: dict[Key, tuple[FiniteFloat, FiniteFloat]] = Field(
        description="[low, high] of those results that have one"
    )

    @model_validator(mode="after")
    def _intervals_fit(self) -> Self:
        for key, (low, high) in self.intervals.items():
            if key not in self.results:
                raise ValueError(f"intervals.{key} has no result")
            if low > high:
                raise ValueError(f"intervals.{key}: low {low} is above high {high}")
        return self


def load(path: Path) -> Benchmark:
    """Read and validate a benchmark's JSON.

    Raises:
        InputError: missing or invalid; names the first field at fault and the reason.
    """
    try:
        return Benchmark.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"no benchmark at {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise InputError(f"{path}: {field}: {first['msg']}") from None
