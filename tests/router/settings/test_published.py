"""What is published of the settings: the annotated example and the schema."""

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from router.config import RouterConfig
from router.settings import json_schema, load

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = DOCS / "router.yaml"
ENVIRONMENT = {"REDIS_PASSWORD": "p%40ss", "ADMIN_KEY_SHA256": "0" * 64}


def test_the_example_loads() -> None:
    config = load(EXAMPLE, ENVIRONMENT)
    assert config.models[0].variants["fast"].kubernetes is not None
    assert config.state.url == "redis://:p%40ss@redis:6379/0"


def test_the_example_names_every_section_and_every_field_of_a_variant() -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    assert document.keys() == RouterConfig.model_fields.keys()
    for name, section in document.items():
        if isinstance(section, dict) and name != "lanes":
            assert section.keys() == type(getattr(load(EXAMPLE, ENVIRONMENT), name)).model_fields.keys(), name


def test_the_example_shows_the_defaults_unless_it_says_otherwise() -> None:
    shown = load(EXAMPLE, ENVIRONMENT)
    plain = RouterConfig.model_validate({"auth": "off", "models": [shown.models[0].model_dump()]})
    for section in ("lanes", "retries", "breaker", "fleet", "limits"):
        assert getattr(shown, section) == getattr(plain, section), section


def test_what_the_example_says_of_restarts_is_what_the_watcher_refuses() -> None:
    marked = {m[1] for m in re.finditer(r"^ *(\w+):[^\n]*\(restart\)", EXAMPLE.read_text(), re.M)}
    nested = {"host", "port", "workers", "folder", "file_bytes", "batch_requests", "header_bytes"}
    assert marked == nested | {"access_log", "otlp_endpoint"}, "and url, whose comment stands above it"


def test_the_published_schema_is_that_of_the_models() -> None:
    assert (DOCS / "router.schema.json").read_text() == json_schema(), "run `make schema`"
