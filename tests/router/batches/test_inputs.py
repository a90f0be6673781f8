"""What a batch's input may look like, and how one that is not valid is refused."""

import json
from pathlib import Path

import pytest
from openai import OpenAI

from router.batches import InputLimits
from tests.router.batches.serving import CHAT, line, lines, read, run, running

pytestmark = pytest.mark.unit

GOOD = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {}}


@pytest.mark.parametrize(
    ("content", "code", "number", "param"),
    [
        (b"", "empty_file", None, None),
        (b"\n \r\n\n", "empty_file", None, None),
        (b"{", "invalid_json_line", 1, None),
        (b"[1]\n", "invalid_json_line", 1, None),
        (b"null\n", "invalid_json_line", 1, None),
        (b"\xff\xfe{}\n", "invalid_json_line", 1, None),
        (b'{"a": NaN}\n', "invalid_json_line", 1, None),
        (json.dumps(GOOD).replace("{}", '{"t": 1e999}').encode(), "invalid_json_line", 1, None),
        (b"[" * 60_000 + b"\n", "invalid_json_line", 1, None),
        (b'{"a": ' + b"1" * 5000 + b"}\n", "invalid_json_line", 1, None),
        (b"\x00\n", "invalid_json_line", 1, None),
        (json.dumps({**GOOD, "custom_id": ""}).encode(), "invalid_value", 1, "custom_id"),
        (json.dumps({**GOOD, "custom_id": 7}).encode(), "invalid_value", 1, "custom_id"),
        (json.dumps({**GOOD, "method": "GET"}).encode(), "invalid_value", 1, "method"),
        (json.dumps({**GOOD, "url": "/v1/embeddings"}).encode(), "url_mismatch", 1, "url"),
        (json.dumps({**GOOD, "body": []}).encode(), "invalid_value", 1, "body"),
        (json.dumps({**GOOD, "body": {"stream": True}}).encode(), "invalid_value", 1, "body.stream"),
        (
            json.dumps({"custom_id": "a", "method": "POST", "url": CHAT}).encode(),
            "missing_required_parameter",
            1,
            "body",
        ),
        (lines(line(1), "", line(2), line(1)), "duplicate_custom_id", 4, "custom_id"),
        (lines(line(1), line(2, custom_id="x" * 70_000)), "request_too_large", 2, None),
        (lines(*(line(n) for n in range(101))), "too_many_tasks", None, None),
    ],
)
def test_an_invalid_input_fails_the_batch_before_anything_is_sent(
    tmp_path: Path, content: bytes, code: str, number: int | None, param: str | None
) -> None:
    with running(tmp_path, limits=InputLimits(requests=100, line_bytes=65_536)) as server:
        client = server.client()
        batch = run(client, content)
        assert (batch.status, server.engine.sent) == ("failed", [])
        assert batch.failed_at is not None
        assert batch.errors.object == "list"
        [error] = batch.errors.data
        assert (error.code, error.line, error.param) == (code, number, param)
        assert error.message
        assert batch.output_file_id is None
        assert batch.error_file_id is None


def test_what_is_wrong_is_listed_line_by_line_up_to_a_limit(client: OpenAI) -> None:
    batch = run(client, lines(line(1), "{", line(2), "x", *("y" for _ in range(200))))
    assert [each.line for each in batch.errors.data] == [2, *range(4, 103)]


@pytest.mark.parametrize(
    "content",
    [
        line(1).encode(),
        (line(1) + "\r\n").encode(),
        (line(1) + "\r\n\r\n  \r\n").encode(),
        ("\n\n" + line(1) + "\n\n").encode(),
        b"\xef\xbb\xbf" + line(1).encode(),
    ],
    ids=["no newline", "crlf", "blank at the end", "blank around", "byte order mark"],
)
def test_lines_may_end_in_any_way(client: OpenAI, content: bytes) -> None:
    batch = run(client, content)
    assert batch.status == "completed", batch.errors
    assert [each["custom_id"] for each in read(client, batch.output_file_id)] == ["id-1"]


@pytest.mark.parametrize("custom_id", ["ü", "\U0001f600", "\ud800", 'a"\\\n', "\x00", "x" * 10_000])
def test_ids_come_back_whatever_they_are(client: OpenAI, custom_id: str) -> None:
    batch = run(client, lines(line(1, custom_id=custom_id)))
    assert [each["custom_id"] for each in read(client, batch.output_file_id)] == [custom_id]
