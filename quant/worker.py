"""Entry point of quant's heavy work inside the optimize environment: `python -m quant.worker`."""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

from quant.gguf import dequantize
from quant.recipes import RECIPES


def main() -> None:
    parser = argparse.ArgumentParser(prog="quant.worker")
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("dequantize", help="GGUF file to bf16 checkpoint")
    recipe = commands.add_parser("recipe", help="checkpoint to weights in another format")
    recipe.add_argument("name", choices=sorted(RECIPES))
    recipe.add_argument("--versions", type=Path, required=True, help="JSON file for the versions of what ran")
    for command in (convert, recipe):
        command.add_argument("source", type=Path)
        command.add_argument("target", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "dequantize":
        dequantize(arguments.source, arguments.target)
        return
    RECIPES[arguments.name](arguments.source, arguments.target)
    tools = ("torch", "transformers", "llmcompressor", "compressed-tensors")
    arguments.versions.write_text(json.dumps({tool: version(tool) for tool in tools}))


if __name__ == "__main__":
    main()
