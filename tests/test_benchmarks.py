"""Every published benchmark has the form that people and programs rely on. Its values are not looked at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twinspeed import benchmark
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

PUBLISHED = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
# The results that a benchmark has to have.
REQUIRED = {
    "quickstart": ("chat_speed_ratio", "edit_speed_ratio", "code_speed_ratio"),
    "router-peers": (
        *(
            f"{who}{row}_cpu_ms"
            for who in ("", "litellm_", "vllm_router_")
            for row in ("json_c32", "sse_c32", "sse_paced")
        ),
        "probes_passed",
        "probes_total",
    ),
}
VALID = {
    "command": "make bench-quickstart",
    "date": "2026-01-02T03:04:05Z",
    "git_sha": "0123456789abcdef0123456789abcdef01234567",
    "machine": "2-core Example CPU, 8 GiB",
    "versions": {"twinspeed": "0.1.0"},
    "seed": 1,
    "rounds": 2,
    "results": {"chat_speed_ratio": 1.9, "edit_speed_ratio": 3, "code_speed_ratio": 2.1},
    "intervals": {"chat_speed_ratio": [1.8, 2.0]},
}


def faults(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            results = benchmark.load(path).results
        except InputError as error:
            found.append(str(error))
            continue
        found += [f"{path}: results.{key} is missing" for key in REQUIRED.get(path.stem, ()) if key not in results]
        if not path.with_suffix(".md").is_file():
            found.append(f"{path} has no {path.stem}.md beside it")
    return found


def plant(folder: Path, data: Any, name: str = "quickstart") -> None:
    (folder / f"{name}.json").write_text(json.dumps(data))
    (folder / f"{name}.md").touch()


def with_result(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["results"].update({key: value})


def test_every_published_benchmark_has_the_form() -> None:
    assert faults(PUBLISHED) == []


def test_a_benchmark_of_the_form_is_accepted(tmp_path: Path) -> None:
    plant(tmp_path, VALID)
    plant(tmp_path, VALID | {"results": {"updates": 5}, "intervals": {}}, name="swap")
    assert faults(tmp_path) == []


@pytest.mark.parametrize("field", VALID)
def test_a_missing_field_is_a_fault(tmp_path: Path, field: str) -> None:
    plant(tmp_path, {key: value for key, value in VALID.items() if key != field})
    assert faults(tmp_path) == [f"{tmp_path / 'quickstart.json'}: {field}: Field required"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (with_result("chat", {"speed_ratio": 2}), "results.chat"),
        (with_result("Chat Speed", 2), "results.Chat Speed"),
        (with_result("chat_speed_ratio", "1.9"), "results.chat_speed_ratio"),
        (with_result("chat_speed_ratio", True), "results.chat_speed_ratio"),
        (with_result("chat_speed_ratio", float("nan")), "results.chat_speed_ratio"),
        (lambda data: data["results"].pop("edit_speed_ratio"), "results.edit_speed_ratio is missing"),
        (lambda data: data.update(results={}), "results"),
        (lambda data: data.update(intervals={"chat_speed_ratio": [2.0, 1.8]}), "low 2.0 is above high 1.8"),
        (lambda data: data.update(intervals={"chat_speed_ratio": [1.8]}), "intervals.chat_speed_ratio"),
        (lambda data: data.update(intervals={"other": [1, 2]}), "intervals.other has no result"),
        (lambda data: data.update(date="2026-01-02T03:04:05"), "date"),
        (lambda data: data.update(git_sha="main"), "git_sha"),
        (lambda data: data.update(rounds=0), "rounds"),
        (lambda data: data.update(machine=""), "machine"),
        (lambda data: data.update(versions={}), "versions"),
        (lambda data: data.update(note="x"), "note"),
    ],
)
def test_a_broken_form_is_a_fault(tmp_path: Path, change: Callable[[dict[str, Any]], None], fault: str) -> None:
    data = json.loads(json.dumps(VALID))
    change(data)
    plant(tmp_path, data)
    found = faults(tmp_path)
    assert len(found) == 1
    assert fault in found[0]


def test_a_benchmark_without_its_page_is_a_fault(tmp_path: Path) -> None:
    plant(tmp_path, VALID)
    (tmp_path / "quickstart.md").unlink()
    assert faults(tmp_path) == [f"{tmp_path / 'quickstart.json'} has no quickstart.md beside it"]


def test_what_is_no_json_is_a_fault(tmp_path: Path) -> None:
    plant(tmp_path, VALID)
    (tmp_path / "quickstart.json").write_text("{")
    assert "(whole file): Invalid JSON" in faults(tmp_path)[0]
