"""The commands `twinspeed route …`."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from router.config import parse_config
from twinspeed.errors import InputError


def serve(
    config: Annotated[
        Path | None, typer.Option(help="The settings, a YAML file; read again on SIGHUP and when it changes.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Without --config: the model's name, as clients ask for it.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VARIANT=URL",
            help="Without --config: a variant and its engine's root, standard=http://127.0.0.1:8001; any number.",
        ),
    ] = None,
    release: Annotated[
        Path | None, typer.Option(help="Without --config: the release's folder, whose evidence the choice goes by.")
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Without --config: the price of one engine's hardware.")
    ] = None,
    host: Annotated[str, typer.Option(help="Without --config: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Without --config: the port; 0 takes a free one.")] = 8000,
    worker: Annotated[
        str | None, typer.Option(hidden=True, metavar="PORT:FOLDER", help="Set by the process that starts workers.")
    ] = None,
) -> None:
    """Serve models' variants behind one OpenAI-compatible endpoint.

    With --config everything is in a file. Without it, one model is served to anyone who can reach the port.
    """
    if config is not None and (name is not None or engine or release is not None):
        raise InputError("--config: the file says it all; leave --name, --engine and --release out.")
    if config is not None:
        from router.settings import load

        settings = load(config, os.environ)
    elif name is None or not engine:
        raise InputError("give --config FILE, or --name NAME and --engine VARIANT=URL for each engine.")
    else:
        folder = None if release is None else str(release)
        settings = parse_config(name, engine, release=folder, usd_per_hour=usd_per_hour, host=host, port=port)
    if config is not None and worker is None and settings.listen.workers > 1:
        from router.workers import supervise

        supervise(settings, config)
        return
    # Late, so that the command line starts fast.
    import uvloop

    from router.listen import listen
    from router.service import serve as run

    shared_port, _, metrics = (worker or "").partition(":")
    where = settings.listen
    listener = listen(where.host, int(shared_port or where.port), shared=worker is not None)
    admin = settings.admin
    with listener:
        admin_listener = None if admin is None else listen(admin.host, admin.port, shared=worker is not None)
        shown = f"[{where.host}]" if ":" in where.host else where.host
        models = ", ".join(f"{model.name} ({', '.join(model.variants)})" for model in settings.models)
        line = f"Routing {models} on http://{shown}:{listener.getsockname()[1]}/v1"
        shared = Path(metrics) if metrics else None
        uvloop.run(run(settings, listener, admin_listener, config, shared, lambda: typer.echo(line, err=True)))


def explain(
    request: Annotated[Path, typer.Argument(help="A file with a request's JSON body, or - for standard input.")],
    admin: Annotated[str, typer.Option(help="The admin API's root.")] = "http://127.0.0.1:8001",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="A header of the request, such as x-slo-ttft-ms:200.")
    ] = None,
    key: Annotated[
        str, typer.Option(envvar="TWINSPEED_ADMIN_KEY", help="The administrators' key.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Ask a running router where a request would go, and why. Nothing is sent to an engine."""
    from rich.console import Console

    from router import ask, show

    headers = {}
    for each in header or []:
        name, separator, value = each.partition(":")
        if not separator:
            raise InputError(f"--header {each}: expected NAME:VALUE.")
        headers[name.strip()] = value.strip()
    answer = ask.ask(admin, key, {"body": ask.read_request(request), "headers": headers})
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(show.explained(answer))


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="A recorded trace, one JSON object a line. Without it, one is generated.")
    ] = None,
    config: Annotated[Path, typer.Option(help="The router's settings; the model in them needs a release.")] = Path(
        "router.yaml"
    ),
    model: Annotated[str | None, typer.Option(help="The model, where the settings have several.")] = None,
    alternative: Annotated[str, typer.Option(help="The variant to compare with standard.")] = "fast",
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="The length of a generated trace.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the generated trace, the random mix and the intervals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a trace through the policy, beside standard alone, the alternative alone and chance at the same spend.

    Engines are simulated from the release's measured speeds; nothing is sent anywhere.
    """
    from rich.console import Console

    from router import show
    from router.choice.replay import replay as run
    from router.choice.trace import generate_trace, read_trace
    from router.settings import load
    from twinspeed import release as releases

    settings = load(config, os.environ)
    chosen = next((each for each in settings.models if model in (None, each.name)), None)
    if chosen is None:
        known = ", ".join(each.name for each in settings.models)
        raise InputError(f"--model {model}: {config} has no such model; it has {known}.")
    release = None if chosen.release is None else releases.load(Path(chosen.release))
    records = generate_trace(seed, requests) if trace is None else read_trace(trace)
    replicas = {variant: max(1, len(each.replicas)) for variant, each in chosen.variants.items()}
    result = run(records, chosen, release, replicas, alternative=alternative, seed=seed)
    if as_json:
        typer.echo(json.dumps(asdict(result), indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(show.replayed(result, seed))
