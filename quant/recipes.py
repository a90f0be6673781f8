"""Recipes: each turns a checkpoint folder into a folder of weights in another number format.

Runs in the optimize environment. A recipe is a plain function named for what runs.
"""

from collections.abc import Callable
from pathlib import Path

Recipe = Callable[[Path, Path], None]


def w8a8_int8_dynamic(source: Path, target: Path) -> None:
    """INT8 weights per output channel, INT8 activations per token scaled at run time; needs no calibration data.

    The head stays as it is: it is tied to the embedding in small models, and costs the most accuracy per byte.
    """
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="W8A8", ignore=["lm_head"]))
    model.save_pretrained(target, save_compressed=True)


RECIPES: dict[str, Recipe] = {"w8a8_int8_dynamic": w8a8_int8_dynamic}
