"""The published OpenAPI document, and what a fuzzer finds that reads it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.openapi import FORWARDED

pytestmark = pytest.mark.unit

NAME = "acme/tiny-7b"


def test_the_document_names_every_path(start_stack: Callable[..., Any], tmp_path: Path) -> None:
    stack = start_stack(lambda config: config["state"].update(folder=str(tmp_path)))
    paths = stack.router.request("GET", "/openapi.json").json["paths"]
    assert set(paths) > {
        *FORWARDED,
        "/v1/models",
        "/v1/models/{model_id}",
        "/health",
        "/metrics",
        "/v1/files",
        "/v1/batches",
    }
    chat = paths["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["required"] == ["model", "messages"]


def test_a_fuzzer_finds_no_fault_of_the_router(start_stack: Callable[..., Any], tmp_path: Path) -> None:
    stack = start_stack(lambda config: config["state"].update(folder=str(tmp_path)))
    document = stack.router.request("GET", "/openapi.json").json
    for path in FORWARDED:
        # A name made up at random would never get past the first check.
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        content["schema"]["properties"]["model"]["enum"] = [NAME, f"{NAME}:fast", f"{NAME}:floor", "unknown"]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    program = Path(sys.executable).with_name("schemathesis")
    command = [program, "run", "openapi.json", "--url", stack.router.url, "--checks", "not_a_server_error"]
    command += ["--max-examples", "25", "--seed", "7", "--phases", "examples,coverage,fuzzing", "--no-color"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:]
    assert stack.metric("twinspeed_router_requests_total", status="500") is None
    assert stack.metric("twinspeed_router_requests_total", variant="fast", status="200") > 20
