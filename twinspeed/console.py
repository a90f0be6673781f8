"""What a person sees while work goes on: one line a step, with its progress and how long it took.

Everything here goes to standard error, so that standard output holds results alone.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

console = Console(stderr=True, highlight=False, soft_wrap=True)

Report = Callable[[float, str], None]
"""Takes the finished fraction of a step (0 to 1) and what it is at."""


@contextmanager
def step(text: str) -> Iterator[Report]:
    """Show a step while its block runs; the block may report how far it is."""
    started = time.monotonic()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("[dim]{task.fields[detail]}[/dim]"),
        TimeElapsedColumn(),
    )
    if not console.is_terminal:
        console.print(f"… {text}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=None, detail="")

        def report(fraction: float, detail: str) -> None:
            progress.update(task, total=1.0, completed=fraction, detail=detail[:60])

        try:
            yield report
        except BaseException:
            console.print(f"[red]✗[/red] {text}")
            raise
    console.print(f"[green]✓[/green] {text} [dim]{time.monotonic() - started:.1f} s[/dim]")


def already(text: str) -> None:
    """A step that an earlier run finished."""
    console.print(f"[green]✓[/green] {text} [dim]already done[/dim]")
