"""The command line as its user meets it: the real program in a process of its own."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
import typer

from twinspeed import cli, processes, release as releases
from twinspeed.environments import Environment
from twinspeed.release import Release

pytestmark = pytest.mark.unit

Snapshot = Callable[[Path], dict[str, bytes | None]]


@dataclass(frozen=True)
class Answer:
    code: int
    output: str
    errors: str


def twinspeed(*arguments: str | Path, cwd: Path | None = None) -> Answer:
    command = [sys.executable, "-m", "twinspeed", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)
    return Answer(done.returncode, done.stdout, done.stderr)


def refusal(*arguments: str | Path, cwd: Path | None = None, code: int = 2) -> str:
    """What the one line of a refused command says; nothing else may be printed."""
    answer = twinspeed(*arguments, cwd=cwd)
    assert (answer.code, answer.output) == (code, "")
    [line] = answer.errors.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.fixture(scope="module")
def commands() -> list[tuple[str, ...]]:
    """The words that call each command and each group."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    return list(walk(typer.main.get_command(cli.build_app()), ()))


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


@pytest.fixture
def nothing_written(tmp_path: Path, snapshot: Snapshot, request: pytest.FixtureRequest) -> Iterator[None]:
    """The test's folder is the same before and after; the home may gain caches and locks, which are not results."""

    def results() -> dict[str, bytes | None]:
        return {
            name: content
            for name, content in snapshot(tmp_path).items()
            if not name.startswith(("home/hashes", "home/locks"))
        }

    (tmp_path / "home").mkdir(exist_ok=True)
    before = results()
    yield
    assert results() == before


def test_every_command_explains_itself(commands: list[tuple[str, ...]]) -> None:
    called = {entry.name.replace(".", " ") for entry in entry_points(group="twinspeed.commands")}
    own = {"env create", "env list", "env remove", "release show", "release verify", "up", "quickstart"}
    assert {" ".join(words) for words in commands} >= called | own
    for words in commands:
        answer = twinspeed(*words, "--help")
        assert (answer.code, answer.errors) == (0, ""), words
        usage, _, text = answer.output.strip().partition("\n")
        assert usage.startswith(" ".join(("Usage: python -m twinspeed", *words)))
        assert text.strip().splitlines()[0], words


def test_the_version_is_the_installed_one() -> None:
    assert twinspeed("--version") == Answer(0, f"{version('twinspeed')}\n", "")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["release", "nonsense"], ["release", "show"], ["up", "--release", "x", "--port", "0"]]
)
def test_a_wrong_use_is_answered_with_the_right_one(arguments: list[str]) -> None:
    answer = twinspeed(*arguments)
    assert (answer.code, answer.output) == (2, "")
    assert answer.errors.startswith("Usage: python -m twinspeed")
    assert "Traceback" not in answer.errors


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize(
    "command",
    [
        ["release", "show"],
        ["release", "verify"],
        ["release", "measure", "--url", "http://127.0.0.1:1", "--out", "out"],
        ["up"],
        ["serve", "--variant", "fast"],
    ],
    ids=" ".join,
)
def test_a_folder_without_a_release_is_refused(tmp_path: Path, command: list[str]) -> None:
    assert refusal(*command, "--release", "nowhere", cwd=tmp_path).startswith("no release at nowhere: ")


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("action", ["create", "remove"])
def test_an_unknown_environment_is_refused(tmp_path: Path, action: str) -> None:
    assert refusal("env", action, "motor", cwd=tmp_path).startswith("there is no environment 'motor': choose engine")
    assert "choose cpu or cuda" in refusal("env", action, "engine", "--hardware", "tpu", cwd=tmp_path)


@pytest.mark.usefixtures("nothing_written")
def test_an_unknown_checkpoint_is_refused(tmp_path: Path) -> None:
    assert refusal("checkpoint", "fetch", "gpt-5", cwd=tmp_path).startswith("no checkpoint is known as 'gpt-5'")
    build = ("release", "build", "nowhere", "--out", "out")
    assert refusal(*build, cwd=tmp_path).startswith("no checkpoint at nowhere: ")


@pytest.mark.usefixtures("optimize", "tiny", "nothing_written")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--max-model-len", "65"], "--max-model-len 65: tiny has a context of 64 tokens"),
        (["--engine-arg", "eager"], "--engine-arg 'eager': give NAME=VALUE"),
        (["--name", "Not a name"], "'Not a name' is no name for a release"),
        (["--out", "tiny"], "tiny exists and is no release"),
    ],
    ids=str,
)
def test_a_build_of_what_cannot_be_is_refused(tmp_path: Path, options: list[str], expected: str) -> None:
    assert refusal("release", "build", "tiny", "--out", "out", *options, cwd=tmp_path).startswith(expected)


@pytest.fixture
def half(tiny: Path) -> Path:
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return path


@pytest.mark.usefixtures("optimize", "half", "nothing_written")
def test_half_a_checkpoint_is_refused(tmp_path: Path) -> None:
    message = refusal("release", "build", "tiny", "--out", "out", cwd=tmp_path)
    assert message.startswith("tiny/model.safetensors is cut short or damaged")


@pytest.mark.usefixtures("tiny", "nothing_written")
def test_a_missing_optimize_environment_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    expected = "there is no optimize environment yet: make it with `twinspeed env create optimize`"
    assert refusal("release", "build", "tiny", "--out", "out", cwd=tmp_path) == expected
    assert refusal("checkpoint", "fetch", "smollm2", cwd=tmp_path) == expected


@pytest.mark.usefixtures("tiny_release", "nothing_written")
def test_a_missing_engine_environment_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    port = str(processes.free_port())
    expected = "there is no engine environment yet: make it with `twinspeed env create engine`"
    assert refusal("up", "--release", "release", "--port", port, cwd=tmp_path) == expected
    assert refusal("serve", "--release", "release", "--variant", "fast", "--port", port, cwd=tmp_path) == expected


@pytest.mark.usefixtures("tiny_release", "nothing_written")
def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    message = refusal("serve", "--release", "release", "--variant", "faster", cwd=tmp_path)
    assert message == "release tiny has no variant 'faster'; it has: standard, fast"


@pytest.mark.usefixtures("tiny_release", "nothing_written")
@pytest.mark.parametrize(
    "command",
    [
        ["up", "--release", "release"],
        ["serve", "--release", "release", "--variant", "fast"],
        ["route", "serve", "--name", "tiny", "--engine", "standard=http://127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_a_port_in_use_is_refused(tmp_path: Path, taken_port: str, command: list[str]) -> None:
    message = refusal(*command, "--port", taken_port, cwd=tmp_path)
    assert taken_port in message
    assert "Address already in use" in message
    assert "--port" in message


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("engine", ["standard", "=http://127.0.0.1:1", "standard=ftp://127.0.0.1"])
def test_a_bad_engine_is_refused(tmp_path: Path, engine: str) -> None:
    assert engine in refusal("route", "serve", "--name", "tiny", "--engine", engine, cwd=tmp_path)


def test_a_damaged_release_is_refused_by_everything_that_serves_it(tiny_release: Path) -> None:
    (tiny_release / "variants/fast/model.safetensors").unlink()
    expected = f"{tiny_release}: variant fast: variants/fast/model.safetensors is missing"
    assert refusal("up", "--release", tiny_release) == expected
    assert refusal("serve", "--release", tiny_release, "--variant", "fast") == expected
    verify = twinspeed("release", "verify", "--release", tiny_release)
    assert (verify.code, verify.output) == (2, "")
    assert verify.errors.splitlines()[-1] == f"error: {expected}"


@pytest.mark.usefixtures("tiny_release", "nothing_written")
def test_measuring_what_is_not_served_fails_and_leaves_the_release_alone(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{processes.free_port()}"
    options = ("--release", "release", "--url", url, "--out", "out", "--usd-per-hour", "1")
    answer = twinspeed("release", "measure", *options, cwd=tmp_path)
    assert (answer.code, answer.output) == (1, "")
    assert answer.errors.splitlines()[-1].startswith(f"error: measuring through {url} failed: ")
    assert "Traceback" not in answer.errors


def test_a_folder_that_cannot_be_written_is_one_line(tiny: Path, optimize: Environment, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = refusal("release", "build", tiny, "--out", tmp_path / "file" / "out", code=1)
    assert message.startswith("Not a directory: ")


def test_a_quickstart_whose_step_fails_ends_with_that_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINSPEED_HOME", "/dev/null/home")
    answer = twinspeed("quickstart", "--out", "out", cwd=tmp_path)
    assert (answer.code, answer.output) == (1, "")
    step, stopped = (line for line in answer.errors.splitlines() if line.startswith("error: "))
    assert step.startswith("error: Not a directory: ")
    assert stopped.startswith("error: quickstart stopped at `twinspeed env create engine`")
    assert "Traceback" not in answer.errors
    assert not (tmp_path / "out").exists()


def test_an_error_is_one_line_whatever_it_quotes(tmp_path: Path) -> None:
    assert refusal("release", "show", "--release", tmp_path / "two\nlines").startswith("no release at ")


def test_a_release_is_shown_to_people_and_to_programs(tiny_release: Path) -> None:
    shown = twinspeed("release", "show", "--release", tiny_release)
    assert (shown.code, shown.errors) == (0, "")
    for text in ("tiny: LlamaForCausalLM, built 2026-01-02 00:00 UTC", "gate: not decided", "w8a8_int8", "ngram"):
        assert text in shown.output

    answer = twinspeed("release", "show", "--release", tiny_release, "--json")
    assert (answer.code, answer.errors) == (0, "")
    assert Release.model_validate_json(answer.output) == releases.load(tiny_release)


def test_a_whole_release_is_verified(tiny_release: Path) -> None:
    answer = twinspeed("release", "verify", "--release", tiny_release, "--json")
    assert answer.code == 0
    assert json.loads(answer.output) == {"name": "tiny", "variants": ["standard", "fast"], "valid": True}
    assert twinspeed("release", "verify", "--release", tiny_release).output == ""


def test_environments_are_listed_to_people_and_to_programs(optimize: Environment) -> None:
    answer = twinspeed("env", "list", "--json")
    assert (answer.code, answer.errors) == (0, "")
    ready = {row["name"]: row["ready"] for row in json.loads(answer.output)}
    assert ready == {"engine": False, "optimize": True}
    assert "optimize" in twinspeed("env", "list").output
