"""Engines: launch, supervision, and the plugin that runs inside vLLM."""
