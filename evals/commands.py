"""`twinspeed release measure`: evidence for a release that is being served."""

from pathlib import Path
from typing import Annotated

import typer


def measure(
    release: Annotated[Path, typer.Option(help="Folder of the release that is being served.")],
    url: Annotated[str, typer.Option(help="Base URL of its router, such as http://127.0.0.1:8000.")],
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")],
    rounds: Annotated[int, typer.Option(min=1, help="How often each prompt is answered by each variant.")] = 2,
    usd_per_hour: Annotated[
        float | None,
        typer.Option(min=0, help="Price of this machine; estimated from its cores when not given."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure speed, cost and quality of fast beside standard through a running router.

    Writes a report, and the figures into release.json as evidence.
    """
    import shlex
    import sys

    from rich.console import Console

    from evals import tables
    from evals.measure import Settings, measure_release

    settings = Settings(
        url=url.rstrip("/"),
        rounds=rounds,
        usd_per_hour=usd_per_hour,
        command=shlex.join(["twinspeed", *sys.argv[1:]]),
    )
    report = measure_release(release, out, settings)
    if json:
        print(report.model_dump_json(indent=2))
    else:
        # A file or a pipe has no width of its own, and rich would squeeze the table into 80 columns.
        console = Console() if sys.stdout.isatty() else Console(width=tables.WIDTH)
        console.print(tables.terminal(report))
