"""The error that is worth showing out of all that an engine prints."""

import json

import pytest

from serve.logs import EngineLog

pytestmark = pytest.mark.unit


def last_error(*lines: str) -> str:
    log = EngineLog("fast")
    for line in lines:
        log.line(line + "\n")
    return log.last_error()


def test_the_first_hand_exception_is_shown_not_what_other_processes_say_of_it() -> None:
    shown = last_error(
        "(EngineCore pid=9) ERROR 11-30 23:10:01 [core.py:1] Traceback (most recent call last):",
        "(EngineCore pid=9) ERROR 11-30 23:10:01 [core.py:1] ValueError: No available memory for the cache blocks.",
        "(APIServer pid=8) Traceback (most recent call last):",
        "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.",
    )
    assert shown == "ValueError: No available memory for the cache blocks."


def test_an_unknown_option_is_shown_as_the_parser_says_it() -> None:
    shown = last_error("usage: vllm serve [options]", "vllm: error: unrecognized arguments: --bogus 1")
    assert shown == "vllm: error: unrecognized arguments: --bogus 1"


def test_without_an_exception_the_last_line_is_shown() -> None:
    assert last_error("loading", "Killed") == "Killed"


def test_a_silent_engine_is_said_to_be_silent() -> None:
    assert last_error() == "it printed nothing"


def test_errors_of_an_earlier_run_are_forgotten() -> None:
    log = EngineLog("fast")
    log.line("ValueError: old\n")
    log.forget()
    log.line("starting\n")
    assert log.last_error() == "starting"


def test_colours_and_broken_bytes_do_not_reach_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    EngineLog("fast").line('\x1b[36m(Worker pid=3)\x1b[0m WARNING 11-30 23:10:01 [a.py:1] caf\ufffd "quoted"\n')
    record = json.loads(capsys.readouterr().out)
    assert record["level"] == "WARNING"
    assert record["message"] == 'caf\ufffd "quoted"'
    assert record["process"] == "Worker pid=3"
