"""The plugin inside the engine environment: found by vLLM, applied where it is needed, and nowhere else."""

import os
import subprocess

import pytest

from twinspeed import environments as heavy

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("environments")]


def in_engine_environment(code: str) -> str:
    """What the code prints when run as an engine's own processes run: with the project on the path."""
    env = {**os.environ, "PYTHONPATH": str(heavy.project_path()), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    python = heavy.resolve("engine").python
    done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_values_are_written_once_a_token_into_the_callers_own_buffer() -> None:
    printed = in_engine_environment("""
import torch
from serve.vllm_plugin.cpu_speculative_sampling import expand
temperature = torch.full((7,), -1.0)
expand(temperature, torch.tensor([0.3, 0.0, 0.9]), torch.tensor([3, 3, 5], dtype=torch.int32), 0.0, 1.0)
top_k = torch.full((3,), -1, dtype=torch.int32)
expand(top_k, torch.tensor([40, 0], dtype=torch.int32), torch.tensor([1, 3]), 0, 49152)
print([round(value, 4) for value in temperature.tolist()], top_k.tolist(), top_k.dtype)
""")
    assert printed == "[0.3, 0.3, 0.3, 0.9, 0.9, -1.0, -1.0] [40, 49152, 49152] torch.int32"


def test_without_the_plugin_the_callers_buffer_is_not_written() -> None:
    """The fault itself. What an engine samples of a buffer that nobody wrote differs from start to start."""
    printed = in_engine_environment("""
import torch
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils
current_platform.import_kernels()
temperature = torch.full((5,), -1.0)
given = torch.tensor([0.3, 0.9]), torch.tensor([3, 5], dtype=torch.int32)
cpu_triton_utils._expand_kernel_impl(temperature, *given, 0, 1, 32)
print(temperature.tolist())
""")
    assert printed == "[-1.0, -1.0, -1.0, -1.0, -1.0]"


@pytest.mark.parametrize(("version", "repaired"), [((0, 32, 0), True), ((0, 33, 0), False), ((1, 0, 0), False)])
def test_the_repair_is_applied_up_to_the_last_version_that_needs_it(
    version: tuple[int, int, int], repaired: bool
) -> None:
    printed = in_engine_environment(f"""
import vllm.version
vllm.version.__version_tuple__ = {version}
from vllm.plugins import load_general_plugins
from vllm.utils import cpu_triton_utils
load_general_plugins()
print(cpu_triton_utils._expand_kernel_impl.__module__)
""")
    assert (printed == "serve.vllm_plugin.cpu_speculative_sampling") == repaired
