"""Dequantizes a GGUF file to a bf16 safetensors checkpoint. Runs in the optimize environment."""

from pathlib import Path


def dequantize(source: Path, target: Path) -> None:
    """Write the model and tokenizer inside the GGUF file `source` to the folder `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        # Without this, transformers keeps the quantization's name in the config and refuses to save.
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
