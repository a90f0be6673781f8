"""Real engines with a model that says nothing: the plumbing from client to engine, and engines that die."""

import json
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path

import openai
import pytest

from tests.e2e.stack import READY_S, Served, descendants

pytestmark = pytest.mark.engine


@pytest.fixture(params=["standard", "fast"])
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_chat_completion_says_which_variant_answered(tiny: Served, variant: str) -> None:
    answer = tiny.client().chat.completions.create(
        model=f"{tiny.name}:{variant}", messages=[{"role": "user", "content": "hello"}], max_tokens=8, temperature=0
    )
    assert answer.model == f"{tiny.name}:{variant}"
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 8


def test_a_streamed_completion_ends_with_usage(tiny: Served, variant: str) -> None:
    chunks = list(
        tiny.client().completions.create(
            model=f"{tiny.name}:{variant}",
            prompt="abcabcabcabcabcabc",
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert {chunk.model for chunk in chunks} == {f"{tiny.name}:{variant}"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16


def test_the_plain_name_is_answered_by_standard(tiny: Served) -> None:
    answer = tiny.client().completions.create(model=tiny.name, prompt="x", max_tokens=1)
    assert answer.model == f"{tiny.name}:standard"


def test_fast_speculates_and_standard_does_not(tiny: Served, variant: str) -> None:
    # A prompt that repeats itself, so that n-gram lookup has something to find.
    tiny.client().completions.create(
        model=f"{tiny.name}:{variant}",
        prompt="abcabc" * 20,
        max_tokens=64,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    with urllib.request.urlopen(f"{tiny.engines[variant]}/metrics", timeout=10) as response:
        metrics = response.read().decode()
    counters = [line for line in metrics.splitlines() if line.startswith("vllm:spec_decode_num_drafts_total")]
    drafts = [float(line.split()[-1]) for line in counters]
    assert (sum(drafts) > 0) == (variant == "fast")


def test_a_refused_request_is_refused_in_openais_shape(tiny: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        tiny.client().completions.create(model=f"{tiny.name}:fast", prompt="x" * 1000, max_tokens=16)
    assert caught.value.body is not None
    assert "maximum context length" in str(caught.value)


def test_what_no_variant_has_room_for_reaches_no_engine(tiny: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="does not support a context of more than 512 tokens") as caught:
        tiny.client().completions.create(model=f"{tiny.name}:fast", prompt="x" * 4000, max_tokens=16)
    assert caught.value.code == "capability_not_supported"


def test_the_engines_log_is_json_lines_with_the_variants_name(tiny: Served, variant: str) -> None:
    lines = (tiny.logs / f"{variant}.jsonl").read_text().splitlines()
    assert {json.loads(line)["variant"] for line in lines} == {variant}


@pytest.mark.parametrize("victim", ["server", "core"])
def test_a_killed_engine_gives_503_for_its_variant_alone_and_comes_back_by_itself(tiny: Served, victim: str) -> None:
    client = tiny.client()
    fast, standard = f"{tiny.name}:fast", f"{tiny.name}:standard"
    statuses: list[int | str] = []
    stop = threading.Event()

    def traffic() -> None:
        while not stop.is_set():
            try:
                for _ in client.completions.create(
                    model=fast, prompt="abc", max_tokens=32, stream=True, extra_body={"ignore_eos": True}
                ):
                    pass
                statuses.append(200)
            except openai.APIStatusError as error:
                statuses.append(error.status_code)
            except openai.APIError as error:
                # The engine died in the middle of this stream: an error event, or a broken connection.
                statuses.append(type(error).__name__)
            time.sleep(0.02)

    def wait_for(what: str) -> None:
        deadline = time.monotonic() + READY_S
        while what not in map(str, statuses):
            assert time.monotonic() < deadline, f"no {what} among {statuses[-5:]}"
            time.sleep(0.02)

    sender = threading.Thread(target=traffic)
    sender.start()
    try:
        wait_for("200")
        os.kill(_engine_process(tiny, "fast", victim), signal.SIGKILL)
        statuses.clear()
        wait_for("503")
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=fast, prompt="abc", max_tokens=1)
        assert caught.value.status_code == 503
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["code"] == "variant_unavailable"
        assert "fast" in caught.value.body["message"]
        assert client.completions.create(model=standard, prompt="abc", max_tokens=1).model == standard
        statuses.clear()
        wait_for("200")
    finally:
        stop.set()
        sender.join()


def _engine_process(served: Served, variant: str, which: str) -> int:
    """The pid of the variant's API server, or of its engine core."""
    port = served.engines[variant].rpartition(":")[2]
    for pid in descendants(served.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"vllm.entrypoints.cli.main" in command and port.encode() in command:
            if which == "server":
                return pid
            return next(
                child for child in descendants(pid) if b"EngineCore" in Path(f"/proc/{child}/cmdline").read_bytes()
            )
    raise AssertionError(f"no engine of {variant} is running")
