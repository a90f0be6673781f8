"""Repairs sampling at temperature > 0 under speculation on vLLM's CPU platform.

Reason: the rejection sampler expands each request's temperature, top-k and top-p to one value per drafted token with
`expand_kernel`. The CPU stand-in casts its *output* buffer to int64, which makes a copy, and writes into the copy: the
caller's float buffer stays uninitialised, and tokens are sampled from a distribution that nobody asked for, with HTTP
200. It also truncates the float inputs to whole numbers.
Upstream: https://github.com/vllm-project/vllm/issues/55005
Goes when: a vLLM release writes the caller's buffer; until then `BROKEN_UP_TO` moves with what was tested.
"""

import torch

BROKEN_UP_TO = (0, 32)
"""The newest vLLM (major, minor) that was seen to need this."""


def apply() -> None:
    """Put `expand` in the place of vLLM's CPU kernel, on versions that need it.

    vLLM registers its CPU kernels after plugins have loaded, by looking the function up in this module, so replacing
    the attribute is enough; registering with its dispatcher here would be overwritten.
    """
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils
    from vllm.version import __version_tuple__

    if current_platform.is_cpu() and tuple(__version_tuple__[:2]) <= BROKEN_UP_TO:
        cpu_triton_utils._expand_kernel_impl = expand


def expand(
    output: torch.Tensor,
    input_val: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Write each request's value once per token of that request, in place, in the output's own dtype.

    Args:
        output: [num_tokens], written.
        input_val: [batch_size].
        cu_num_tokens: [batch_size], running total of tokens, so that request i has tokens cu[i-1]..cu[i].
        replace_from: a value that is written as `replace_to` instead.
        MAX_NUM_TOKENS: part of the kernel's signature; a limit that only the Triton kernel needs.
    """
    values = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).to(torch.int64)
    expanded = torch.repeat_interleave(values, counts)
    output[: expanded.shape[0]].copy_(expanded)
