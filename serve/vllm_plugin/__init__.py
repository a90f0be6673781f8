"""What Twinspeed changes inside vLLM. Loaded by vLLM in each of its processes (`vllm.general_plugins`).

Each repair stands in a module of its own with its reason, the upstream issue, and the versions it is for.
"""

from serve.vllm_plugin import cpu_speculative_sampling


def register() -> None:
    """Entry point: apply every repair that this vLLM needs."""
    cpu_speculative_sampling.apply()
