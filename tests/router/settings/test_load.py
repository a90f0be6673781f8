"""A settings file becomes a configuration, or one line for each fault, with its place."""

import os
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from router.config import RouterConfig
from router.settings import document, load
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

GOOD = """\
auth: off
models:
  - name: acme/m
    variants:
      standard:
        replicas:
          - http://127.0.0.1:8001
          - http://127.0.0.1:8002
      fast:
        replicas: [http://127.0.0.1:8003]
"""


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers, because an installation may lack libyaml."""
    monkeypatch.setattr(document, "_LOADER", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "router.yaml"


def refusal(file: Path, text: str | bytes, **environ: str) -> list[str]:
    """The lines with which a file is refused, without its folder."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        load(file, environ)
    return str(caught.value).replace(str(file), "router.yaml").split("\n")


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_reads_a_file(file: Path) -> None:
    file.write_text(GOOD)
    config = load(file, {})
    assert isinstance(config, RouterConfig)
    assert config.models[0].variants["standard"].replicas == ("http://127.0.0.1:8001", "http://127.0.0.1:8002")


def test_reads_a_file_with_a_byte_order_mark_and_windows_line_ends(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(file, {}).auth == "off"


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("auth", "off", "off"),
        ("auth", "'off'", "off"),
        ("access_log", "2024-01-01", "2024-01-01"),
        ("access_log", "1:30", "1:30"),
        ("access_log", "~", None),
        ("access_log", "null", None),
        ("access_log", "'null'", "null"),
        ("access_log", ">-\n  two\n  lines", "two lines"),
    ],
)
def test_takes_words_for_words(file: Path, field: str, text: str, value: object) -> None:
    file.write_text(f"{GOOD if field != 'auth' else changed('auth: off', '')}\n{field}: {text}\n")
    assert getattr(load(file, {}), field) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("0x10", 16), ("+7", 7), ("1_000", 1000), ("'12'", 12), ("010", 10)],
)
def test_takes_numbers_for_numbers(file: Path, text: str, value: int) -> None:
    file.write_text(f"{GOOD}limits: {{messages: {text}}}\n")
    assert load(file, {}).limits.messages == value


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000.0), (".5", 0.5), ("5.", 5.0), ("2", 2.0)])
def test_takes_fractions_for_seconds(file: Path, text: str, value: float) -> None:
    file.write_text(f"{GOOD}fleet: {{poll_interval: {text}}}\n")
    assert load(file, {}).fleet.poll_interval == value


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("true", True), ("no", False), ("off", False)])
def test_takes_yaml_1_1_booleans_where_a_field_is_one(file: Path, text: str, value: bool) -> None:
    file.write_text(changed("      fast:\n", f"      fast:\n        speculates: {text}\n"))
    assert load(file, {}).models[0].variants["fast"].speculates is value


def test_names_that_look_like_numbers_are_names(file: Path) -> None:
    file.write_text(changed("      fast:", "      8:"))
    assert set(load(file, {}).models[0].variants) == {"standard", "8"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            changed("  - http://127.0.0.1:8002", "  - ftp://127.0.0.1:8002"),
            "router.yaml:8: models[0].variants.standard.replicas[1]: 'ftp://127.0.0.1:8002' is no http URL; "
            "expected one such as http://127.0.0.1:8001",
        ),
        (
            changed("    variants:", "    varants: 1\n    variants:"),
            "router.yaml:4: models[0].varants: there is no such field; did you mean variants?",
        ),
        (
            GOOD + "listen: {speed: 3}\n",
            "router.yaml:11: listen.speed: there is no such field, only host, port, workers",
        ),
        (changed("  - name: acme/m\n    variants", "  - variants"), "router.yaml:3: models[0].name: is missing"),
        (GOOD + "listen:\n  port: 70000\n", "router.yaml:12: listen.port: should be less than or equal to 65535"),
        (
            GOOD + f"listen: {{port: {'9' * 5000}}}\n",
            "router.yaml:11: listen.port: Unable to parse input string as an integer",
        ),
        (GOOD + "listen:\n", "router.yaml:11: listen: should be a mapping, NAME: VALUE"),
        (GOOD + "access_log: 5\n", "router.yaml:11: access_log: should be text; put quotes around it"),
        (GOOD + "auth: off\n", "router.yaml:11: auth: is given twice, first on line 1; keep one"),
        (
            changed("      fast:", "      standard:"),
            "router.yaml:9: models[0].variants.standard: is given twice, first on line 5; keep one",
        ),
        (
            changed("      fast:", "      Fast:"),
            "router.yaml:9: models[0].variants.Fast: String should match pattern '^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$'",
        ),
        (
            changed("      fast:", "      floor:"),
            "router.yaml:3: models[0]: variants.floor: `floor` is a goal and cannot be a variant's name",
        ),
        (
            changed("[http://127.0.0.1:8003]", "http://127.0.0.1:8003"),
            "router.yaml:10: models[0].variants.fast.replicas: should be a list, each item after a dash",
        ),
        (GOOD + '"two\\nlines": 1\n', 'router.yaml:11: ["two\\nlines"]: there is no such field, only '),
        (changed("auth: off", "auth: &a off") + "access_log: *a\n", "router.yaml:11: access_log: aliases such as *a"),
        (GOOD + "access_log: !!str x\n", "router.yaml:11: access_log: tags are not read"),
        (GOOD + "access_log: !!python/object/apply:os.getcwd []\n", "router.yaml:11: access_log: tags are not read"),
        (GOOD + "? [a]\n: 1\n", "router.yaml:11: a field's name is no plain text; give each field as NAME: VALUE"),
        (GOOD + "---\nauth: off\n", "router.yaml:11: a second document starts here; keep one in a file"),
        (GOOD + "lanes: " + "[" * 40 + "]" * 40, "router.yaml:11: lanes[0][0]: is nested too deeply"),
        (GOOD + "lanes: " + "[" * 50_000, "router.yaml:11: "),
        (GOOD + "listen: {port: 1\n", "router.yaml:12: is no YAML: "),
        (GOOD + "access_log: 'open\n", "router.yaml:12: is no YAML: "),
        (GOOD + "\taccess_log: 1\n", "router.yaml:11: is no YAML: "),
        (GOOD + "access_log: a\x01b\n", "is no YAML: "),
        (GOOD.encode() + b"access_log: \xff\n", "router.yaml:11: is not UTF-8: invalid start byte"),
        (GOOD.encode("utf-16"), "router.yaml:1: is not UTF-8: invalid start byte"),
        ("", "router.yaml: is empty; expected the router's settings, each as NAME: VALUE"),
        ("# nothing\n", "router.yaml: is empty; expected the router's settings, each as NAME: VALUE"),
        ("- a\n- b\n", "router.yaml: is no mapping; expected the router's settings, each as NAME: VALUE"),
        ("auth", "router.yaml: is no mapping; expected the router's settings, each as NAME: VALUE"),
        (GOOD.replace("auth: off", "auth: required"), "router.yaml: auth is required, and state.url memory: keeps no"),
    ],
)
def test_refuses_what_is_wrong_in_one_line_with_its_place(file: Path, text: str | bytes, line: str) -> None:
    [only] = refusal(file, text)
    assert line in only
    assert only.startswith("router.yaml")


def test_an_escape_that_names_no_character_is_refused(file: Path) -> None:
    [only] = refusal(file, GOOD + 'access_log: "\\UFFFFFFFF"\n')
    assert "is no YAML: " in only


def test_lists_all_faults_in_the_order_of_the_file(file: Path) -> None:
    text = "listen: {port: x, hots: y}\nauth: maybe\n" + GOOD.removeprefix("auth: off\n").replace("8003", "8003/v1")
    assert [line.partition(" ")[0] for line in refusal(file, text)] == [
        "router.yaml:1:",
        "router.yaml:1:",
        "router.yaml:2:",
        "router.yaml:11:",
    ]


def test_a_field_that_may_be_of_several_types_gets_one_line(file: Path) -> None:
    text = changed("replicas: [http://127.0.0.1:8003]", "kubernetes: {namespace: a, service: b, port: 1.5}")
    [only] = refusal(file, text)
    assert only.startswith("router.yaml:10: models[0].variants.fast.kubernetes.port: should be a valid integer, ")
    assert only.endswith(" or should be text; put quotes around it")


def test_lists_a_hundred_faults_at_most(file: Path) -> None:
    lines = refusal(file, GOOD + "".join(f"x{n}: 1\n" for n in range(150)))
    assert len(lines) == 101
    assert lines[-1] == "… and 50 more"


def test_a_bomb_of_aliases_is_refused_without_being_built(file: Path) -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    assert all("aliases such as" in line for line in refusal(file, bomb)[:-1])


def test_refuses_a_file_larger_than_a_mebibyte(file: Path) -> None:
    file.write_text(GOOD + "#" * (1024 * 1024 - len(GOOD)))
    assert load(file, {}).auth == "off"
    assert refusal(file, GOOD + "#" * (1024 * 1024 + 1 - len(GOOD))) == [
        "router.yaml: is larger than 1.0 MiB, the most that settings may be"
    ]


def test_says_why_a_file_cannot_be_read(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"router\.yaml: No such file or directory; name the YAML file"):
        load(file, {})
    with pytest.raises(InputError, match="is no file"):
        load(tmp_path, {})


def test_a_pipe_is_refused_and_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(InputError, match="is no file"):
        load(file, {})
