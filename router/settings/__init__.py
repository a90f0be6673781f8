"""The router's settings: a YAML file, environment variables over it, and what happens when the file changes."""

from router.settings.load import load
from router.settings.schema import json_schema
from router.settings.watch import ConfigWatcher

__all__ = ["ConfigWatcher", "json_schema", "load"]
