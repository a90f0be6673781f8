"""Usage in the forms that engines write it, from the last bytes of what they send."""

import json
from typing import Any

import pytest

from router.record import Usage
from router.usage import UsageTap, parse_usage

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}, Usage(9, 4, 8)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None}, Usage(9, 4)),
        ({"prompt_tokens": 9, "total_tokens": 9}, Usage(9, 0)),
        ({"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}, Usage(9, 4, 2)),
        ({"input_tokens": 47, "output_tokens": 4, "cache_read_input_tokens": 256}, Usage(303, 4, 256)),
        ({"input_tokens": 7, "output_tokens": 4, "cache_creation_input_tokens": 128}, Usage(135, 4)),
        ({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 99}}, Usage(3, 4, 3)),
        ({"prompt_tokens": -3, "completion_tokens": 4}, None),
        ({"prompt_tokens": "3"}, None),
        ({}, None),
        (5, None),
    ],
)
def test_every_engines_form(usage: Any, expected: Usage | None) -> None:
    assert parse_usage(json.dumps({"id": "x", "usage": usage, "choices": []}).encode()) == expected
    assert parse_usage(b"data: " + json.dumps({"usage": usage}).encode() + b"\n\ndata: [DONE]\n\n") == expected


def test_the_last_usage_counts_and_text_that_looks_like_one_does_not() -> None:
    said = json.dumps({"content": '"usage": {"prompt_tokens": 1, "completion_tokens": 1}'}).encode()
    first = b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
    last = b'{"usage": {"prompt_tokens": 2, "completion_tokens": 2}}'
    assert parse_usage(first + said + last + said) == Usage(2, 2)
    assert parse_usage(said) is None
    assert parse_usage(last + b'{"metadata": {"usage": "none"}}') == Usage(2, 2)


def test_a_long_stream_is_not_held_and_every_event_is_counted() -> None:
    tap = UsageTap()
    event = b"data: " + b"x" * 1000 + b"\n\n"
    for _ in range(2000):
        tap.add(event)
    assert tap.usage() is None
    assert tap.estimate(7) == Usage(7, 2000)
    tap.add(b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 5000}}\n\n')
    assert tap.usage() == Usage(7, 5000)
