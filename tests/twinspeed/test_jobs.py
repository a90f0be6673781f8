import os
from pathlib import Path

import pytest

from twinspeed import environments, jobs
from twinspeed.environments import Environment
from twinspeed.errors import InputError, TwinspeedError

pytestmark = pytest.mark.unit


def test_a_module_runs_in_the_environment_and_its_output_goes_to_the_log(optimize: Environment, tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"a": 1}')
    log = tmp_path / "logs" / "job.log"
    jobs.run_module(optimize, "json.tool", ["--compact", tmp_path / "in"], log)
    assert log.read_text() == '{"a":1}\n'


def test_the_environments_python_runs_this_project_without_the_callers_packages(
    optimize: Environment, tmp_path: Path
) -> None:
    log = tmp_path / "job.log"
    with pytest.raises(TwinspeedError, match=r"quant\.worker failed: ModuleNotFoundError: No module named 'torch'"):
        jobs.run_module(optimize, "quant.worker", ["dequantize", "a.gguf", tmp_path], log)
    with pytest.raises(TwinspeedError, match="No module named 'pydantic'"):
        jobs.run_module(optimize, "twinspeed.release", [], log)


def test_no_job_reaches_for_the_network_by_itself(optimize: Environment, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    told = "import os; print(os.environ['HF_HUB_OFFLINE'], os.environ['PATH'])"
    jobs.run_module(optimize, "timeit", ["-n1", "-r1", told], log)
    assert log.read_text().splitlines()[0] == f"1 {os.environ['PATH']}"


def test_a_failure_shows_the_last_line_and_the_log(optimize: Environment, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("{")
    log = tmp_path / "job.log"
    with pytest.raises(TwinspeedError) as caught:
        jobs.run_module(optimize, "json.tool", [tmp_path / "in"], log)
    last = log.read_text().splitlines()[-1]
    assert last.startswith("Expecting property name")
    assert str(caught.value) == f"json.tool failed: {last} (full log: {log})"
    assert not isinstance(caught.value, InputError)


def test_a_failure_without_a_word_says_so(optimize: Environment, tmp_path: Path) -> None:
    with pytest.raises(TwinspeedError, match=r"timeit failed: it printed nothing \(full log: "):
        jobs.run_module(optimize, "timeit", ["import os; os._exit(3)"], tmp_path / "job.log")


def test_a_missing_environment_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    engine = environments.resolve("engine", "cpu")
    log = tmp_path / "logs" / "job.log"
    with pytest.raises(InputError) as caught:
        jobs.run_module(engine, "json.tool", [], log)
    assert str(caught.value) == "there is no engine environment yet: make it with `twinspeed env create engine`"
    assert not log.parent.exists()
