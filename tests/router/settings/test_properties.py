"""Any valid document reads as what it says, and no corrupt one raises anything but InputError."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from pydantic import JsonValue

from router.config import RouterConfig
from router.settings import document, load
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

CASES = 500
# What YAML 1.1 or 1.2 might take for something else.
WORDS = [
    "off",
    "yes",
    "null",
    "~",
    "1:30",
    "2024-01-01",
    "0x1f",
    "007",
    ".inf",
    "1_0",
    "a: b",
    "#c",
    "- d",
    "é\u2028",
    "<<",
    "=",
]
DEBRIS = [
    "&a ",
    "*a",
    "!!binary ",
    "---\n",
    "...\n",
    "{",
    "[",
    "]",
    "}",
    ":",
    "? ",
    "\t",
    "%YAML 9\n",
    "|\n",
    "'",
    '"',
    "\\",
]
DEBRIS += [
    "${ENV:",
    "${ENV:SET}",
    "${ENV:UNSET}",
    "\x00",
    "\x85",
    "\ud7ff",
    '"\\uD800"',
    '"\\U00110000"',
    "<<: ",
    "9" * 5000,
]
NOISE: list[JsonValue] = [
    None,
    True,
    -1,
    0,
    1e308,
    10**400,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\x1b",
    [],
    [[]],
    {},
    {"": None},
]


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_LOADER", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)


def cases() -> Iterator[random.Random]:
    for seed in range(CASES):
        print(f"seed {seed}")  # shown where the test fails
        yield random.Random(seed)


def some_document(r: random.Random) -> dict[str, JsonValue]:
    """Valid settings as a plain tree."""

    def variant(n: int) -> JsonValue:
        found: JsonValue = [f"http://10.0.{n}.{k}:{r.randint(1, 65535)}" for k in range(r.randint(1, 4))]
        service: JsonValue = {"namespace": r.choice(WORDS), "service": "s", "port": r.choice(["http", "1", 8000])}
        settings: dict[str, JsonValue] = r.choice([{"replicas": found}, {"kubernetes": service}])
        extra: dict[str, JsonValue] = {"usd_per_hour": r.random(), "max_in_flight": r.randint(1, 9), "speculates": True}
        return settings | {key: value for key, value in extra.items() if r.random() < 0.5}

    names = ["standard", *r.sample(["fast", "8", "off", "a.b", "x_y-z"], r.randint(0, 3))]
    shadow: list[JsonValue] = [None, {"variant": names[-1], "share": 0.5}]
    cascade: list[JsonValue] = [None, {"first": names[-1], "verifier": "regex", "pattern": r"^\{.*\}$"}]
    models: JsonValue = [
        {
            "name": r.choice(WORDS[:12]) if n == 0 else f"m{n}",
            "max_quality_loss": r.choice([0, 0.25, 1e-9]),
            "variants": {name: variant(n) for name in names},
            "shadow": r.choice(shadow),
            "cascade": r.choice(cascade),
        }
        for n in range(r.randint(1, 3))
    ]
    optional: dict[str, JsonValue] = {
        "listen": {"port": r.randint(0, 65535), "host": "::1"},
        "admin": {"port": 1, "key_sha256": "0" * 64},
        "lanes": {"batch": {"queue": r.randint(0, 99), "timeouts": {"connect": r.choice([1, 0.5, 1e-05, 2.5e8])}}},
        "access_log": r.choice(WORDS),
        "state": {"folder": r.choice(WORDS)},
    }
    return {"auth": "off", "models": models} | {name: value for name, value in optional.items() if r.random() < 0.5}


def written(r: random.Random, tree: JsonValue) -> str:
    """The tree as YAML in one of the ways in which people and programs write it."""
    if r.random() < 0.2:
        return json.dumps(tree, ensure_ascii=r.random() < 0.5, indent=r.choice([None, 2]))
    text: str = yaml.dump(
        json.loads(json.dumps(tree)),  # so that no part is shared, which would be written as an alias
        Dumper=yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper,
        default_flow_style=r.choice([None, True, False]),
        allow_unicode=r.random() < 0.5,
        width=r.choice([20, 80, 1000]),
        indent=r.choice([2, 4]),
        sort_keys=r.random() < 0.5,
        explicit_start=r.random() < 0.2,
    )
    return text


def corrupted_tree(r: random.Random, tree: JsonValue) -> JsonValue:
    """A few values and names in it changed for others, anywhere."""
    if r.random() < 0.03:
        return r.choice(NOISE)
    if isinstance(tree, dict):
        return {
            r.choice(["", "port", "é\n", key + "x"]) if r.random() < 0.02 else key: corrupted_tree(r, value)
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [corrupted_tree(r, value) for value in tree for _ in range(r.choice([1] * 9 + [0, 2]))]
    return tree


def corrupted_bytes(r: random.Random, content: bytes) -> bytes:
    for _ in range(r.randint(1, 4)):
        a, b = sorted(r.randrange(len(content) + 1) for _ in range(2))
        debris = r.choice(DEBRIS).encode() if r.random() < 0.8 else r.randbytes(3)
        content = r.choice(
            [
                content[:a] + debris + content[a:],
                content[:a] + debris + content[a + 1 :],
                content[:a] + content[a + 1 :],
                content[:a] + content[a:b] + content[a:],
                content[:b],
            ]
        )
    return content


def test_valid_documents_read_as_what_they_say(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    for r in cases():
        tree = some_document(r)
        expected = RouterConfig.model_validate(tree)
        file.write_text(written(r, tree))
        assert load(file, {}) == expected
        file.write_text(written(r, json.loads(expected.model_dump_json())))
        assert load(file, {}) == expected


def test_corrupt_documents_raise_nothing_but_input_errors(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    refused = 0
    for r in cases():
        content = written(r, corrupted_tree(r, some_document(r))).encode()
        file.write_bytes(corrupted_bytes(r, content) if r.random() < 0.7 else content)
        environ = {"SET": "s3cr3t", **{name: r.choice(["s3cr3t", "1", ""]) for name in corrupt_names(r)}}
        try:
            load(file, environ)
        except InputError as error:
            refused += 1
            for line in str(error).split("\n"):
                assert line.startswith((str(file), "TWINSPEED_ROUTER__", "… and ")), line
                assert "s3cr3t" not in line
                assert line.isprintable(), line
    assert refused > CASES // 2


def corrupt_names(r: random.Random) -> list[str]:
    if r.random() < 0.5:
        return []
    parts = [
        "MODELS",
        "0",
        "99",
        "VARIANTS",
        "STANDARD",
        "REPLICAS",
        "LISTEN",
        "PORT",
        "STATE",
        "URL",
        "",
        "-1",
        "É",
        "NAME",
    ]
    return ["TWINSPEED_ROUTER__" + "__".join(r.choices(parts, k=r.randint(1, 4))) for _ in range(2)]
