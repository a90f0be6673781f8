"""What the command line names becomes a configuration, or one clear line."""

import pytest

from router.config import parse_config
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit


def test_reads_variants_in_their_order() -> None:
    config = parse_config("acme/m", ["standard=http://127.0.0.1:8001/", "fast=https://engine.example"])
    assert [(u.variant, u.base_url, u.model_id) for u in config.upstreams.values()] == [
        ("standard", "http://127.0.0.1:8001", "acme/m:standard"),
        ("fast", "https://engine.example", "acme/m:fast"),
    ]
    assert list(config.models) == ["acme/m", "acme/m:standard", "acme/m:fast"]
    assert config.models["acme/m"].variant == "standard"


@pytest.mark.parametrize(
    ("engines", "reason"),
    [
        ([], "no engine for variant standard"),
        (["fast=http://h:1"], "no engine for variant standard"),
        (["http://h:1"], "expected VARIANT=URL"),
        (["=http://h:1"], "no variant name"),
        (["Standard=http://h:1"], "no variant name"),
        (["standard\r\n=http://h:1"], "no variant name"),
        (["standard=h:1"], "no http URL"),
        (["standard=ftp://h:1"], "no http URL"),
        (["standard=http://"], "no http URL"),
        (["standard=http://h:port"], "no http URL"),
        (["standard=http://h:99999"], "no http URL"),
        (["standard=http://h:1/v1"], "nothing after it"),
        (["standard=http://h:1?a=b"], "nothing after it"),
        (["standard=http://h:1", "standard=http://h:2"], "given twice"),
    ],
)
def test_refuses_bad_engines_in_one_line(engines: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refusal:
        parse_config("m", engines)
    assert "--engine" in str(refusal.value)


@pytest.mark.parametrize("name", ["", " m", "m\n"])
def test_refuses_a_bad_name(name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        parse_config(name, ["standard=http://h:1"])
