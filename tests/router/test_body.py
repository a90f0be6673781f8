"""Only the top-level model value changes; every other byte stays."""

import json
import random
import re
import time

import pytest

from router.body import BodyError, parse_body

pytestmark = pytest.mark.unit

EDGES = {
    "plain": (b'{"model":"m","a":1}', b'{"model":"N:v","a":1}'),
    "only member": (b'{"model":"m"}', b'{"model":"N:v"}'),
    "last member": (b'{"a":[1,2],"model":"m"}', b'{"a":[1,2],"model":"N:v"}'),
    "whitespace": (
        b' \r\n\t{ \n"model"\t:\r\n "m" , "a" : 1 } \n',
        b' \r\n\t{ \n"model"\t:\r\n "N:v" , "a" : 1 } \n',
    ),
    "nested keys": (
        b'{"a":{"model":"x"},"b":[{"model":"m"}],"model":"m","c":{"d":{"model":1}}}',
        b'{"a":{"model":"x"},"b":[{"model":"m"}],"model":"N:v","c":{"d":{"model":1}}}',
    ),
    "escaped key": (b'{"mod\\u0065l":"m"}', b'{"mod\\u0065l":"N:v"}'),
    "escaped value": (b'{"model":"\\u006d","z":"\\u006d"}', b'{"model":"N:v","z":"\\u006d"}'),
    "value with a quote": (b'{"model":"m\\"}","a":2}', b'{"model":"N:v","a":2}'),
    "key as a value": (b'{"a":"model","model":"m","b":"model"}', b'{"a":"model","model":"N:v","b":"model"}'),
    "structure within strings": (
        b'{"a":"}{][\\",\\"model\\":\\"x\\"","b\\\\":"\\\\","model":"m"}',
        b'{"a":"}{][\\",\\"model\\":\\"x\\"","b\\\\":"\\\\","model":"N:v"}',
    ),
    "non-ASCII before and after": (
        '{"é":"日本 😀","model":"m","ж":"ü\\ud83d"}'.encode(),
        '{"é":"日本 😀","model":"N:v","ж":"ü\\ud83d"}'.encode(),
    ),
    "duplicates": (b'{"model":"x","a":1,"model":"m"}', b'{"model":"N:v","a":1,"model":"N:v"}'),
    "duplicate of another type": (b'{"model":[{"model":1}],"model":"m"}', b'{"model":"N:v","model":"N:v"}'),
    "numbers": (
        b'{"a":1.0e+05,"b":-0,"c":1E400,"d":12345678901234567890123,"model":"m"}',
        b'{"a":1.0e+05,"b":-0,"c":1E400,"d":12345678901234567890123,"model":"N:v"}',
    ),
    "similar keys": (
        b'{"Model":"a","model ":"b","models":"c","model":"m"}',
        b'{"Model":"a","model ":"b","models":"c","model":"N:v"}',
    ),
}


@pytest.mark.parametrize(("before", "after"), EDGES.values(), ids=EDGES)
def test_changes_the_model_value_and_nothing_else(before: bytes, after: bytes) -> None:
    body = parse_body(before)
    assert body.model == json.loads(before)["model"]
    assert body.with_model("N:v") == after


def test_the_new_value_is_escaped() -> None:
    assert parse_body(b'{"model":"m"}').with_model('a"\\é') == b'{"model":"a\\"\\\\\\u00e9"}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "valid JSON"),
        (b"{", "valid JSON"),
        (b'\xef\xbb\xbf{"model":"m"}', "byte order mark"),
        ('{"model":"m"}'.encode("utf-16"), "UTF-8"),
        (b'{"model":"m","a":"\xff"}', "UTF-8"),
        (b'{"model":"m","a":"\xed\xa0\x80"}', "UTF-8"),
        (b'["model"]', "object"),
        (b'"model"', "object"),
        (b'{"model":"m"} x', "valid JSON"),
        (b'{"model":"m"}{}', "valid JSON"),
        (b'{"model":"m",}', "valid JSON"),
        (b'{,"model":"m"}', "valid JSON"),
        (b'{"model":"m" "a":1}', "valid JSON"),
        (b'{"model" "m"}', "valid JSON"),
        (b'{"model":}', "valid JSON"),
        (b"{'model':'m'}", "valid JSON"),
        (b'{1:2,"model":"m"}', "valid JSON"),
        (b'{"model":"m","a":"\n"}', "valid JSON"),
        (b'{"model":"m","a":NaN}', "NaN"),
        (b'{"model":"m","a":[-Infinity]}', "-Infinity"),
        (b'{"model":"m","a":' + b"[" * 100_000, "deep"),
        (b'{"model":"m","a":' + b"1" * 5000 + b"}", "valid JSON"),
        (b'{"model":"m"}\x00', "valid JSON"),
        (b'{"model":"m"\x0b}', "valid JSON"),
        (b"{}", "no `model`"),
        (b'{"a":{"model":"m"}}', "no `model`"),
        (b'{"model":null}', "string"),
        (b'{"model":"m","model":3}', "string"),
    ],
)
def test_refuses_what_is_no_request_and_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(BodyError, match=re.escape(reason)):
        parse_body(body)


def random_value(rng: random.Random, depth: int) -> str:
    space = rng.choice(["", "", " ", "\n", "\t \r\n"])
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind == 0:
        text = rng.choice(["1", "-0.50", "2e+3", "true", "false", "null", "[]", "{}"])
    elif kind < 5:
        text = random_string(rng)
    elif kind == 5:
        text = "[" + ",".join(random_value(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    else:
        text = random_object(rng, depth + 1)
    return space + text + space


def random_string(rng: random.Random) -> str:
    alphabet = [
        "model",
        '\\"',
        "\\\\",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\\u006d",
        "é",
        "😀",
        "\\ud83d",
        " ",
        "x",
    ]
    return '"' + "".join(rng.choices(alphabet, k=rng.randrange(6))) + '"'


MODEL_KEYS = ('"model"', '"mod\\u0065l"')


def random_members(rng: random.Random, depth: int) -> list[tuple[str, str]]:
    keys = [rng.choice([*MODEL_KEYS, random_string(rng)]) for _ in range(rng.randrange(5))]
    return [(key, random_value(rng, depth)) for key in keys]


def write_object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f" {key} :{value}" for key, value in members) + "}"


def random_object(rng: random.Random, depth: int) -> str:
    return write_object(random_members(rng, depth))


def test_fuzz_every_other_byte_stays() -> None:
    seed = 20_240_917
    print(f"seed {seed}")
    rng = random.Random(seed)
    edited = 0
    for _ in range(3000):
        members = random_members(rng, 0)
        text = write_object(members)
        model = json.loads(text).get("model")
        if not isinstance(model, str):
            with pytest.raises(BodyError):
                parse_body(text.encode())
            continue
        edited += 1
        body = parse_body(text.encode())
        assert body.model == model, text
        new = [(key, value.replace(value.strip(), '"N:v"') if key in MODEL_KEYS else value) for key, value in members]
        assert body.with_model("N:v").decode() == write_object(new), text
    assert edited > 500


def test_fuzz_takes_and_refuses_what_json_does() -> None:
    seed = 7_081_962
    print(f"seed {seed}")
    rng = random.Random(seed)
    taken = refused = 0
    for _ in range(6000):
        text = write_object([*random_members(rng, 0), ('"model"', '"m"')])
        cut = rng.randrange(len(text))
        text = text[:cut] + rng.choice(["", ",", '"', "}", "x", " ", "\\"]) + text[cut + 1 :]
        try:
            pairs = json.loads(text, object_pairs_hook=list)
            valid = isinstance(dict(pairs).get("model"), str)
        except ValueError:
            valid = False
        if not valid:
            refused += 1
            with pytest.raises(BodyError):
                parse_body(text.encode())
            continue
        taken += 1
        expected = [(key, "N:v" if key == "model" else value) for key, value in pairs]
        edited = parse_body(text.encode()).with_model("N:v")
        assert json.loads(edited, object_pairs_hook=list) == expected, text
    assert min(taken, refused) > 1000, (taken, refused)


def test_a_large_string_costs_milliseconds() -> None:
    image = b"QUJD" * 1_250_000
    raw = b'{"messages":[{"content":"' + image + b'"}],"model":"m"}'
    costs = []
    for _ in range(5):
        started = time.process_time()
        parse_body(raw).with_model("N:v")
        costs.append(time.process_time() - started)
    assert min(costs) < 0.1
