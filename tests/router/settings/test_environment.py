"""Environment variables go before the file, and what they hold is never shown."""

from pathlib import Path

import pytest

from router.config import RouterConfig
from router.settings import load
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

GOOD = """\
auth: off
models:
  - name: acme/m
    variants:
      standard: {replicas: ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "router.yaml"
    path.write_text(GOOD)
    return path


def refusal(file: Path, environ: dict[str, str]) -> str:
    with pytest.raises(InputError) as caught:
        load(file, environ)
    return str(caught.value).replace(str(file), "router.yaml")


def overridden(file: Path, **variables: str) -> RouterConfig:
    return load(file, {f"TWINSPEED_ROUTER__{name}": value for name, value in variables.items()})


def test_a_variable_sets_a_field(file: Path) -> None:
    config = overridden(file, LISTEN__PORT="9000", LANES__BATCH__MAX_WAIT="1.5", AUTH="off", ACCESS_LOG="-")
    assert (config.listen.port, config.lanes.batch.max_wait, config.access_log) == (9000, 1.5, "-")


def test_a_variable_sets_an_item_of_a_list_and_a_value_of_a_mapping(file: Path) -> None:
    config = overridden(
        file,
        MODELS__0__MAX_QUALITY_LOSS="0.25",
        MODELS__0__VARIANTS__STANDARD__REPLICAS__1="http://127.0.0.1:9",
        MODELS__0__VARIANTS__STANDARD__SPECULATES="true",
        MODELS__0__VARIANTS__FAST__KUBERNETES__NAMESPACE="a",
        MODELS__0__VARIANTS__FAST__KUBERNETES__SERVICE="b",
        MODELS__0__VARIANTS__FAST__KUBERNETES__PORT="8000",
    )
    variants = config.models[0].variants
    assert config.models[0].max_quality_loss == 0.25
    assert variants["standard"].replicas == ("http://127.0.0.1:8001", "http://127.0.0.1:9")
    assert variants["standard"].speculates
    assert variants["fast"].kubernetes is not None
    assert variants["fast"].kubernetes.port == 8000


@pytest.mark.parametrize("text", ["memory:", "redis://:a#b@h:1/0", "sqlite:///1"])
def test_the_value_of_a_text_is_taken_as_it_stands(file: Path, text: str) -> None:
    assert overridden(file, STATE__URL=text).state.url == text


def test_null_unsets_a_text_that_may_be_unset(file: Path) -> None:
    file.write_text(GOOD + "access_log: '-'\n")
    assert overridden(file, ACCESS_LOG="null").access_log is None
    assert overridden(file, MODELS__0__NAME="null").models[0].name == "null"


def test_variables_of_other_programs_and_of_service_links_are_let_alone(file: Path) -> None:
    load(file, {"TWINSPEED_ROUTER_PORT": "tcp://10.0.0.1:8000", "TWINSPEED_HOME": "/x", "PORT": "1"})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("LISTEN__PROT", "names no field: listen holds host, port, workers"),
        ("MODEL", "names no field: the whole holds listen, admin, auth, models, "),
        ("", "names no field: the whole holds listen, admin, auth, models, "),
        ("LISTEN____PORT", "names no field: listen holds host, port, workers"),
        ("LISTEN__PORT__X", "names no field: listen.port holds no other fields"),
        ("MODELS__FIRST__NAME", "names no field: models holds items by number, from 0"),
        ("MODELS__-1__NAME", "names no field: models holds items by number, from 0"),
        ("MODELS__7__NAME", "there is no models[7]: the list has 1 items, from 0"),
        ("MODELS__1__NAME", "there is no models[1]: the list has 1 items, from 0"),
        ("MODELS__0__VARIANTS__STANDARD__REPLICAS__2", "there is no models[0].variants.standard.replicas[2]: the list"),
        ("LISTEN", "listen is no single value; name a field in it, such as TWINSPEED_ROUTER__LISTEN__FIELD"),
        ("MODELS", "models is no single value; name a field in it, such as TWINSPEED_ROUTER__MODELS__FIELD"),
        ("MODELS__0__CASCADE__THEN__X", "names no field: models[0].cascade.then holds no other fields"),
    ],
)
def test_a_variable_that_names_no_field_is_refused_by_name(file: Path, name: str, reason: str) -> None:
    message = refusal(file, {f"TWINSPEED_ROUTER__{name}": "hunter2"})
    assert message.startswith(f"TWINSPEED_ROUTER__{name}: {reason}")
    assert "hunter2" not in message


def test_a_wrong_value_is_refused_by_its_variable(file: Path) -> None:
    message = refusal(file, {"TWINSPEED_ROUTER__LISTEN__PORT": "hunter2", "TWINSPEED_ROUTER__AUTH": "hunter3"})
    assert [line.partition(": ")[0] for line in message.splitlines()] == [
        "TWINSPEED_ROUTER__LISTEN__PORT",
        "TWINSPEED_ROUTER__AUTH",
    ]
    assert "hunter" not in message


def test_faults_of_variables_and_of_the_file_are_listed_together(file: Path) -> None:
    file.write_text(GOOD + "listen: {workers: 0}\n")
    lines = refusal(file, {"TWINSPEED_ROUTER__X": "1", "TWINSPEED_ROUTER__LISTEN__PORT": "-1"}).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "router.yaml:6",
        "TWINSPEED_ROUTER__X",
        "TWINSPEED_ROUTER__LISTEN__PORT",
    ]


def test_a_file_that_holds_something_else_there_is_not_overwritten(file: Path) -> None:
    file.write_text(GOOD + "listen: all\n")
    assert "TWINSPEED_ROUTER__LISTEN__PORT: cannot be laid over the file, where listen is another kind of value" in (
        refusal(file, {"TWINSPEED_ROUTER__LISTEN__PORT": "1"})
    )


def test_a_name_inside_a_text_is_replaced_once(file: Path) -> None:
    file.write_text(GOOD + "state:\n  url: redis://:${ENV:A}@${ENV:B}/0\nlisten: {port: '${ENV:PORT}'}\n")
    config = load(file, {"A": "${ENV:B}", "B": "h:1", "PORT": "81"})
    assert config.state.url == "redis://:${ENV:B}@h:1/0"
    assert config.listen.port == 81


def test_a_variable_may_name_another(file: Path) -> None:
    environ = {"TWINSPEED_ROUTER__STATE__URL": "redis://:${ENV:PASSWORD}@h:1/0", "PASSWORD": "p"}
    assert load(file, environ).state.url == "redis://:p@h:1/0"


def test_a_name_that_is_not_set_is_the_only_fault(file: Path) -> None:
    file.write_text(GOOD + "state:\n  url: ${ENV:STORE}\n")
    assert refusal(file, {}) == "router.yaml:7: state.url: the environment variable STORE is not set"


@pytest.mark.parametrize("text", ["${ENV:}", "${ENV:a-b}", "${ENV:A", "${ENV:A}${ENV:"])
def test_a_malformed_reference_is_refused(file: Path, text: str) -> None:
    file.write_text(GOOD + f"access_log: 'x{text}'\n")
    assert refusal(file, {"A": "1"}) == "router.yaml:6: access_log: `${ENV:` starts no reference; write ${ENV:NAME}"


@pytest.mark.parametrize("secret", ["hunter2", 'hun"ter2\\', "hunter2\n", "hünter2\u2028"])
def test_what_a_variable_holds_is_not_in_the_message(file: Path, secret: str) -> None:
    file.write_text(GOOD + "state:\n  url: mysql://me:${ENV:PASSWORD}@h/\n")
    message = refusal(file, {"PASSWORD": secret})
    assert message == (
        "router.yaml:6: state: url 'mysql://me:${ENV:PASSWORD}@h/': "
        "expected memory:, sqlite:///…, redis://… or postgresql://…"
    )
    message = refusal(file, {"TWINSPEED_ROUTER__STATE__URL": f"mysql://me:{secret}@h/", "PASSWORD": "x"})
    assert message == (
        "router.yaml:6: state: url '$TWINSPEED_ROUTER__STATE__URL': "
        "expected memory:, sqlite:///…, redis://… or postgresql://…"
    )


def test_a_secret_that_is_escaped_only_where_it_stands_is_not_in_the_message(file: Path) -> None:
    file.write_text(GOOD + "state:\n  url: 'mysql://\"${ENV:PASSWORD}'\n")
    assert "hun" not in refusal(file, {"PASSWORD": "hun'ter2"})


def test_a_secret_in_a_field_of_its_own_is_not_in_the_message(file: Path) -> None:
    file.write_text(GOOD.replace("http://127.0.0.1:8002", "${ENV:ENGINE}"))
    assert refusal(file, {"ENGINE": "http://me:hunter2@h:1"}) == (
        "router.yaml:5: models[0].variants.standard.replicas[1]: '${ENV:ENGINE}': give the engine's root, "
        "http://HOST:PORT, and nothing after it"
    )
