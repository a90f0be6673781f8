"""The command line. Stages add their commands through entry points (group `twinspeed.commands`)."""

import errno
import json as json_module
import signal
import sys
from contextlib import suppress
from importlib.metadata import entry_points, version
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from twinspeed.console import already, console, step
from twinspeed.errors import TwinspeedError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def _group(text: str) -> typer.Typer:
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


app = _group("One post-trained checkpoint in; a release with a standard and a fast speed out, behind one endpoint.")
groups = {
    "env": _group("The heavy environments: engine (vLLM) and optimize (quantization)."),
    "checkpoint": _group("Checkpoints: Hugging Face model folders."),
    "release": _group("Releases: a checkpoint's variants with their evidence."),
    "route": _group("The router: one OpenAI-compatible endpoint for all variants."),
}
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
HardwareOption = Annotated[
    str | None, typer.Option(help="cpu or cuda; by default what this machine has.", show_default=False)
]
ReleaseOption = Annotated[Path, typer.Option(help="Folder of the release.")]


@groups["env"].command("create")
def env_create(
    name: Annotated[str, typer.Argument(help="engine or optimize")], hardware: HardwareOption = None
) -> None:
    """Install a heavy environment from its lock. Does nothing when it is there already."""
    from twinspeed import environments

    environment = environments.resolve(name, hardware)
    if environment.ready:
        already(f"environment {environment.label} in {environment.path}")
        return
    with step(f"environment {environment.label} in {environment.path}") as report:
        environments.create(environment, report)


@groups["env"].command("list")
def env_list(json: AsJson = False) -> None:
    """Show the environments on this machine, those of older locks included."""
    from twinspeed import environments, files

    found = environments.list_all()
    if json:
        rows = [
            {
                "name": status.name,
                "hardware": status.hardware,
                "path": str(status.path),
                "ready": status.ready,
                "size_bytes": status.size_bytes,
            }
            for status in found
        ]
        print(json_module.dumps(rows, indent=2))
        return
    table = Table("environment", "hardware", "ready", "size", "path")
    for status in found:
        ready = "yes" if status.ready else "no"
        table.add_row(status.name, status.hardware, ready, files.human_bytes(status.size_bytes), str(status.path))
    Console().print(table)


@groups["env"].command("remove")
def env_remove(
    name: Annotated[str, typer.Argument(help="engine or optimize")], hardware: HardwareOption = None
) -> None:
    """Delete a heavy environment from disk."""
    from twinspeed import environments

    environment = environments.resolve(name, hardware)
    environments.remove(environment)
    console.print(f"removed {environment.path}")


@groups["release"].command("show")
def release_show(release: ReleaseOption, json: AsJson = False) -> None:
    """Show what a release holds and what was measured of it."""
    from twinspeed import files, release as releases

    loaded = releases.load(release)
    if json:
        print(loaded.model_dump_json(indent=2))
        return
    out = Console()
    out.print(f"{loaded.name}: {loaded.parent.architecture}, built {loaded.created_at:%Y-%m-%d %H:%M} UTC")
    out.print(f"parent {loaded.parent.uri} ({loaded.parent.tree_sha256[:12]})")
    out.print(f"gate: {loaded.gate.verdict if loaded.gate else 'not decided'}")
    variants = Table("variant", "format", "size", "speculation", "context")
    evidence = Table("variant", "measure", "workload", "value", "95 % interval", "n", "machine")
    for name, variant in loaded.variants.items():
        speculation = variant.speculation.method if variant.speculation else "none"
        size, context = files.human_bytes(variant.weights.bytes), str(variant.capabilities.context)
        variants.add_row(name, variant.weights.format, size, speculation, context)
        for kind in (variant.evidence.speed, variant.evidence.cost, variant.evidence.quality):
            for entry in kind:
                value = f"{entry.value:.4g} {entry.unit}"
                interval = f"{entry.interval.low:.4g} to {entry.interval.high:.4g}" if entry.interval else "none"
                evidence.add_row(name, entry.measure, entry.workload, value, interval, str(entry.n), entry.machine)
    out.print(variants)
    if evidence.row_count:
        out.print(evidence)


@groups["release"].command("verify")
def release_verify(release: ReleaseOption, json: AsJson = False) -> None:
    """Hash every file of a release again, and check that its variants are their parent's equals."""
    from twinspeed import release as releases

    name = releases.load(release).name
    with step(f"verifying {name} in {release}"):
        verified = releases.verify(release)
    if json:
        print(json_module.dumps({"name": verified.name, "variants": list(verified.variants), "valid": True}))


@app.command()
def up(
    release: ReleaseOption,
    host: Annotated[str, typer.Option(help="Address the router listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the router.")] = 8000,
    logs: Annotated[Path, typer.Option(help="Folder for the logs of the engines and the router.")] = Path("runs/up"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON line once both variants have answered.")] = False,
) -> None:
    """Serve a release: one engine a variant, and the router in front. Runs until Ctrl-C or SIGTERM."""
    from twinspeed.up import serving

    with serving(release, host=host, port=port, logs=logs) as stack:
        if json:
            ready = {"url": stack.url, "models": stack.models, "engines": stack.engine_urls}
            print(json_module.dumps(ready), flush=True)
        else:
            print(f"{stack.url}/v1 serves {', '.join(stack.models)}", flush=True)
        # Being told to stop is how serving ends well.
        with suppress(KeyboardInterrupt):
            stack.wait()


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the release, the logs and the report.")] = Path(
        "runs/quickstart"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="How often each prompt is answered by each variant.")] = 2,
    keep: Annotated[bool, typer.Option(envvar="KEEP", help="Keep serving after the report.")] = False,
) -> None:
    """From nothing to two speeds of a small real model, measured side by side. Run again, it goes on from there."""
    from twinspeed.quickstart import quickstart as run

    run(out, rounds=rounds, keep=keep)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("twinspeed"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def build_app() -> typer.Typer:
    """The whole command line, the stages' commands included."""
    for entry in entry_points(group="twinspeed.commands"):
        group, _, name = entry.name.rpartition(".")
        (groups[group] if group else app).command(name)(entry.load())
    for name, group_app in groups.items():
        app.add_typer(group_app, name=name)
    return app


def main() -> None:
    """Run the command line; an error meant for the user is one line on standard error."""
    # So that SIGTERM unwinds `finally` blocks, as Ctrl-C does. Commands with an event loop set their own handlers.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        build_app()()
    except TwinspeedError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        # These speak of the user's machine: no permission, not a folder, a full disk. Any other is a bug.
        if error.filename is None and error.errno not in _DISK_FULL:
            raise
        _fail(f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror), 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str, exit_code: int) -> NoReturn:
    print(f"error: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(exit_code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
