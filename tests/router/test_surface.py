"""The whole API through real clients: what engines answer, what the router answers, and batches end to end."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from typer.testing import CliRunner

from twinspeed.cli import build_app

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture
def full(start_stack: Callable[..., Any], tmp_path: Path) -> Any:
    """A stack that serves files and batches too."""
    return start_stack(lambda config: config["state"].update(folder=str(tmp_path / "state")))


@pytest.fixture
def api(full: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{full.router.url}/v1", api_key="x", max_retries=0, timeout=10) as client:
        yield client


def test_responses_whole_and_streamed(api: openai.OpenAI) -> None:
    whole = api.responses.create(model=f"{NAME}:fast", input="Hi", max_output_tokens=3)
    assert (whole.model, whole.output_text) == (f"{NAME}:fast", "w0 w1 w2 ")
    events = list(api.responses.create(model=NAME, input="Hi", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "w0 w1 w2 "


def test_embeddings(api: openai.OpenAI) -> None:
    vectors = api.embeddings.create(model=NAME, input=["a", "b"]).data
    assert len(vectors) == 2
    assert vectors[0].embedding != vectors[1].embedding


def test_tool_calls_whole_and_in_deltas(api: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": MESSAGES, "tools": [WEATHER], "tool_choice": "required"}
    whole = api.chat.completions.create(**asked).choices[0].message.tool_calls
    assert whole
    parts = [
        call.function
        for chunk in api.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or []
        if call.function
    ]
    assert "".join(part.arguments or "" for part in parts) == whole[0].function.arguments  # type: ignore[union-attr]
    assert [part.name for part in parts if part.name] == ["weather"]


def test_tokenize_and_detokenize(full: Any) -> None:
    asked = full.router.post("/tokenize", {"model": NAME, "prompt": "one two"})
    assert asked.status == 200
    said = full.router.post("/detokenize", {"model": NAME, "tokens": asked.json["tokens"]})
    assert (said.status, set(said.json)) == (200, {"prompt"})


def test_anthropics_client(full: Any) -> None:
    with anthropic.Anthropic(base_url=full.router.url, api_key="x", max_retries=0) as client:
        message = client.messages.create(model=f"{NAME}:fast", max_tokens=3, messages=MESSAGES)
        assert (message.model, message.usage.output_tokens) == (f"{NAME}:fast", 3)
        with client.messages.stream(model=NAME, max_tokens=3, messages=MESSAGES) as stream:
            assert stream.get_final_text() == "w0 w1 w2 "
        counted = client.messages.count_tokens(model=NAME, messages=MESSAGES)
        assert counted.input_tokens > 0


@pytest.mark.parametrize(
    ("path", "body", "completion"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 7}, 7),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 7, "stream": True}, 7),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 7, "stream": True}, 7),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 7}, 7),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 7, "stream": True}, 7),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 7}, 7),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 7, "stream": True}, 7),
        ("/v1/embeddings", {"input": "Hi"}, 0),
    ],
)
def test_tokens_are_counted_whatever_the_api(full: Any, path: str, body: dict[str, Any], completion: int) -> None:
    assert full.router.post(path, {"model": NAME, **body}).status == 200
    tokens = "twinspeed_router_tokens_total"
    assert full.metric(tokens, kind="completion") == completion
    assert full.metric(tokens, kind="prompt") == 1


def test_a_batch_from_file_to_file(api: openai.OpenAI, full: Any) -> None:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": NAME if number else "unknown", "messages": MESSAGES, "max_tokens": number},
        }
        for number in range(5)
    ]
    text = "\n".join(map(json.dumps, lines)).encode()
    source = api.files.create(file=("in.jsonl", text), purpose="batch")
    batch = api.batches.create(input_file_id=source.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline = time.monotonic() + 20
    while batch.status != "completed" and time.monotonic() < deadline:
        time.sleep(0.05)
        batch = api.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 1)
    assert batch.output_file_id
    assert batch.error_file_id
    out = [json.loads(line) for line in api.files.content(batch.output_file_id).text.splitlines()]
    used = {each["custom_id"]: each["response"]["body"]["usage"]["completion_tokens"] for each in out}
    assert used == {f"line-{number}": number for number in range(1, 5)}
    [failed] = [json.loads(line) for line in api.files.content(batch.error_file_id).text.splitlines()]
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("line-0", 404)
    sent = dict(full.apps["standard"].stats.last_headers)
    assert sent["x-request-id"] in {each["response"]["request_id"] for each in out}


def test_explain_tells_where_a_request_would_go_and_sends_nothing(
    start_stack: Callable[..., Any], tmp_path: Path
) -> None:
    key_sha256 = "8c6976e5b5410415bde908bd4dee15dfb167a9c873fc4bb8a81f6f2ab448a918"  # of "admin"

    def guarded(config: dict[str, Any]) -> None:
        config["admin"] = {"port": 0, "key_sha256": key_sha256}
        config["models"][0]["variants"]["fast"]["speculates"] = True

    stack = start_stack(guarded, replicas=2)
    (tmp_path / "request.json").write_text(json.dumps({"model": f"{NAME}:nitro", "messages": MESSAGES, "min_p": 0.1}))
    command = ["route", "explain", str(tmp_path / "request.json"), "--admin", stack.router.admin.url]
    runner = CliRunner()
    told = runner.invoke(build_app(), [*command, "--json"], env={"TWINSPEED_ADMIN_KEY": "admin"})
    assert told.exit_code == 0, told.output
    candidates = json.loads(told.stdout)["candidates"]
    assert [each["variant"] for each in candidates] == ["standard", "standard", "fast", "fast"]
    assert [each["chosen"] for each in candidates] == [True, False, False, False]
    assert all("min_p" in each["verdict"] for each in candidates[2:])
    table = runner.invoke(build_app(), command, env={"TWINSPEED_ADMIN_KEY": "admin"})
    assert "→" in table.stdout
    assert sum(app.stats.started for app in stack.apps.values()) == 0
    answer = stack.router.post("/v1/chat/completions", {"model": f"{NAME}:nitro", "messages": MESSAGES, "min_p": 0.1})
    assert answer.headers["x-twinspeed-variant"] == "standard"


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        ("{", "admin", "no JSON"),
        ("[]", "admin", "expected a JSON object"),
        ('{"model": "other"}', "admin", "does not exist"),
        ("{}", "admin", "no `model`"),
        ('{"model": "acme/tiny-7b"}', "wrong", "administrators' key is needed"),
    ],
)
def test_explain_refuses_in_one_line(
    start_stack: Callable[..., Any], tmp_path: Path, content: str, key: str, reason: str
) -> None:
    key_sha256 = "8c6976e5b5410415bde908bd4dee15dfb167a9c873fc4bb8a81f6f2ab448a918"
    stack = start_stack(lambda config: config.update(admin={"port": 0, "key_sha256": key_sha256}))
    (tmp_path / "request.json").write_text(content)
    command = ["route", "explain", str(tmp_path / "request.json"), "--admin", stack.router.admin.url, "--key", key]
    refused = CliRunner().invoke(build_app(), command)
    assert refused.exit_code != 0
    assert reason in str(refused.exception)
