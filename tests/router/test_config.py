"""What the command line names becomes a configuration, or one clear line."""

import pytest

from router.config import parse_config
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit


def test_reads_variants_in_their_order_and_replicas_of_one_variant_together() -> None:
    engines = ["standard=http://127.0.0.1:8001/", "fast=http://engine.example", "standard=http://127.0.0.1:8002"]
    config = parse_config("acme/m", engines, port=9000)
    assert (config.auth, config.listen.port) == ("off", 9000)
    [model] = config.models
    assert {variant: each.replicas for variant, each in model.variants.items()} == {
        "standard": ("http://127.0.0.1:8001", "http://127.0.0.1:8002"),
        "fast": ("http://engine.example",),
    }


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
        (["standard=http://h:1", "standard=http://h:1"], "listed twice"),
        (["standard=http://h:1", "fast=http://h:1"], "listed for two variants"),
        (["standard=https://h:1"], "no http URL"),
        (["standard=http://h:1", "nitro=http://h:2"], "is a goal"),
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
