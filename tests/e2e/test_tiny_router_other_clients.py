"""Clients that are not OpenAI's for Python, against a router with keys and real engines: Node, Anthropic, curl."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.e2e.front import ONE_RELEASE, TIMEOUT_S, Account, Front
from tests.servers import wait_until

pytestmark = [pytest.mark.engine, ONE_RELEASE]

HELLO: Any = [{"role": "user", "content": "hello"}]
# vLLM takes no seed for messages, and the likeliest answer of all is no text.
LIGHTS = ['"a red light"', '"a green light"']
GREEDY: Any = {
    "max_tokens": 64,
    "output_config": {"format": {"type": "json_schema", "schema": {"enum": [json.loads(light) for light in LIGHTS]}}},
    "extra_body": {"temperature": 0},
}

Node = Callable[[str, str], Any]


@pytest.fixture(params=["standard", "fast"])
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def program(name: str, package: str) -> str:
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed: apt-get install {package}"
    return path


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with OpenAI's client for Node, of the version in package.json, and our scenarios."""
    folder = tmp_path_factory.mktemp("node") / "clients"
    shutil.copytree(Path(__file__).parent / "clients", folder)
    program("node", "nodejs")
    command = [program("npm", "npm"), "ci", "--omit=peer", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"npm could not install OpenAI's client for Node: {done.stderr[-2000:]}"
    return folder


@pytest.fixture
def node(node_folder: Path, account: Account) -> Node:
    """Runs a scenario with OpenAI's client for Node on a model; what it printed."""

    def run(scenario: str, model: str) -> Any:
        env = {
            **os.environ,
            "OPENAI_BASE_URL": f"{account.front.public.url}/v1",
            "OPENAI_API_KEY": account.secret,
        }
        command = [program("node", "nodejs"), "scenarios.mjs", scenario, model]
        done = subprocess.run(
            command, cwd=node_folder, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


def test_node_gets_the_same_chat_completion_streamed_and_not(node: Node, front: Front, variant: str) -> None:
    model = f"{front.name}:{variant}"
    whole, streamed = node("chat", model), node("stream", model)
    assert whole["text"]
    assert whole["model"] == model
    assert (streamed["text"], streamed["models"]) == (whole["text"], [model])
    [usage] = streamed["usages"]
    assert usage["total_tokens"] == whole["usage"]["total_tokens"]


def test_node_gets_valid_tool_calls_out_of_a_stream(node: Node, front: Front, variant: str) -> None:
    [[name, arguments]] = node("tools", f"{front.name}:{variant}")
    assert name == "set_light"
    assert _is_light(arguments)


def test_node_gets_structured_output(node: Node, front: Front, variant: str) -> None:
    assert _is_light(node("structured", f"{front.name}:{variant}"))


def test_node_gets_the_same_response_streamed_and_not(node: Node, front: Front, variant: str) -> None:
    seen = node("responses", f"{front.name}:{variant}")
    assert seen["whole"]
    assert seen["streamed"] == seen["whole"]
    assert seen["streamedUsage"]["total_tokens"] == seen["usage"]["total_tokens"]


@pytest.mark.parametrize(
    ("scenario", "seen"),
    [("leave_stream", {"chunks": 40}), ("leave_whole", {"error": "APIUserAbortError"})],
)
def test_the_engine_stops_when_node_leaves(
    node: Node, front: Front, variant: str, scenario: str, seen: dict[str, object]
) -> None:
    def made() -> float:
        return front.engine_metric(variant, "vllm:generation_tokens_total")

    def running() -> float:
        return front.engine_metric(variant, "vllm:num_requests_running")

    before, left = made(), front.metric("twinspeed_router_client_disconnects_total")
    assert node(scenario, f"{front.name}:{variant}") == seen
    assert wait_until(lambda: running() == 0, 5)
    # Of 256 answers of 480 tokens each.
    assert 0 < made() - before < 0.8 * 256 * 480
    assert front.metric("twinspeed_router_client_disconnects_total") == left + 1
    assert front.metric("twinspeed_router_in_flight", variant=variant) == 0


def test_anthropics_client_gets_the_same_message_streamed_and_not(account: Account, variant: str) -> None:
    client, model = account.anthropic(), f"{account.front.name}:{variant}"
    whole = client.messages.create(model=model, messages=HELLO, **GREEDY)
    assert whole.model == model
    assert _text(whole) in LIGHTS
    with client.messages.stream(model=model, messages=HELLO, **GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 3
    assert "".join(pieces) == _text(final) == _text(whole)
    assert final.model == model
    assert (final.usage.input_tokens, final.usage.output_tokens) == (
        whole.usage.input_tokens,
        whole.usage.output_tokens,
    )


def test_anthropics_client_counts_tokens_as_a_message_does(account: Account) -> None:
    client = account.anthropic()
    counted = client.messages.count_tokens(model=account.front.name, messages=HELLO)
    answer = client.messages.create(model=account.front.name, messages=HELLO, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens
    assert account.usage()["day_tokens"] == answer.usage.input_tokens + answer.usage.output_tokens


def test_anthropics_client_tells_a_wrong_key_from_an_unknown_model(account: Account) -> None:
    stranger = Account(account.front, "none", "sk-ts-" + "x" * 43)
    with pytest.raises(anthropic.AuthenticationError):
        stranger.anthropic().messages.create(model=account.front.name, messages=HELLO, max_tokens=1)
    with pytest.raises(anthropic.NotFoundError):
        account.anthropic().messages.create(model="nothing", messages=HELLO, max_tokens=1)


def test_curl_gets_json_with_what_was_decided_in_its_head(front: Front, tmp_path: Path) -> None:
    account = front.account(rpm=1000, tpm=100_000)
    headers, body = _curl(account, tmp_path, {"model": front.name, "messages": HELLO, "max_tokens": 8})
    answer = json.loads(body)
    assert headers["content-type"] == "application/json"
    assert answer["model"] == f"{front.name}:{headers['x-twinspeed-variant']}" == f"{front.name}:standard"
    assert headers["x-twinspeed-replica"].startswith("standard-")
    assert headers["x-twinspeed-reason"] == "default"
    assert 0 < float(headers["x-twinspeed-overhead-ms"]) < 1000
    assert headers["x-request-id"] == "from-curl"
    assert answer["id"] == "chatcmpl-from-curl"
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("1000", "999")
    assert headers["x-ratelimit-limit-tokens"] == "100000"
    assert int(headers["x-ratelimit-remaining-tokens"]) < 100_000
    assert headers["x-ratelimit-reset"].endswith("s")
    cost = Decimal(headers["x-twinspeed-cost-usd"])
    assert cost > 0
    assert account.usage()["day_cost"] == cost * 10**9


def test_curl_gets_events_as_the_engine_sent_them(front: Front, account: Account, tmp_path: Path) -> None:
    asked = {"model": f"{front.name}:fast", "messages": HELLO, "max_tokens": 8, "stream": True}
    headers, body = _curl(account, tmp_path, asked)
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["x-twinspeed-variant"], headers["x-twinspeed-reason"]) == ("fast", "pinned")
    assert headers["x-request-id"] == "from-curl"
    # Proxies that would hold a stream back are told not to.
    assert headers["x-accel-buffering"] == "no"
    assert not [name for name in headers if name.startswith("x-ratelimit-")]
    *events, end = body.strip().split("\n\n")
    assert end == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {("chatcmpl-from-curl", f"{front.name}:fast")}
    assert [chunk for chunk in chunks if not chunk["choices"] or chunk.get("usage")] == []


def _curl(account: Account, folder: Path, data: dict[str, object]) -> tuple[dict[str, str], str]:
    """Headers, by their names in lower case, and body of a chat completion of curl's."""
    head = folder / "head"
    command = [program("curl", "curl"), "--silent", "--show-error", "--no-buffer", "--fail-with-body"]
    command += ["--dump-header", str(head), "--json", json.dumps(data), "--header", "x-request-id: from-curl"]
    command += ["--header", f"authorization: Bearer {account.secret}"]
    command.append(f"{account.front.public.url}/v1/chat/completions")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr + done.stdout
    pairs = [line.partition(":") for line in head.read_text().splitlines()[1:] if line]
    return {name.lower(): value.strip() for name, _, value in pairs}, done.stdout


def _text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _is_light(value: Any) -> bool:
    return value.keys() == {"on", "colour"} and value["on"] in (True, False) and value["colour"] in ("red", "green")
