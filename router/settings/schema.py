"""The published JSON Schema of the settings file."""

import json

from router.config import RouterConfig


def json_schema() -> str:
    """The JSON Schema of the settings, as `docs/router.schema.json` holds it."""
    return json.dumps(RouterConfig.model_json_schema(), indent=2) + "\n"
