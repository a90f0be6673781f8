"""The comparison as a table: for a terminal and for Markdown."""

from rich import box
from rich.table import Table

from evals.report import Figure, Report, VariantFigures, WorkloadFigures

WIDTH = 100
"""Columns that the terminal's table needs."""


def terminal(report: Report) -> Table:
    """The table for a terminal of 100 columns."""
    shown = Table(
        title=f"{report.release}: standard and fast, one stream",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        title_style="bold",
        caption=f"Medians (top-1 and log-prob.: means) [95 % interval]. {report.machine}, "
        f"{report.usd_per_hour:.2f} USD/h.",
        caption_justify="left",
    )
    for column in ("workload", "variant"):
        shown.add_column(column, no_wrap=True)
    for column in (
        "output\ntok/s",
        "fast ÷\nstandard",
        "TTFT\nms",
        "TPOT\nms",
        "USD per\n10⁶ tok",
        "top-1\nagree",
        "mean\nlog-prob.",
    ):
        shown.add_column(column, justify="right", no_wrap=True)
    for name, both in report.workloads.items():
        shown.add_row(*_terminal_row(name, "standard", both.standard, ""))
        shown.add_row(*_terminal_row("", "fast", both.fast, " ".join(_ratio(both.speed_ratio))), end_section=True)
    return shown


def markdown(report: Report) -> str:
    """The main figures as Markdown, with the circumstances below; narrow enough for a page on GitHub."""
    header = (
        "| workload | fast ÷ standard | output tokens/s | TTFT ms | USD per 10⁶ tokens | top-1 agreement |\n"
        "|---|--:|--:|--:|--:|--:|\n"
    )
    rows = "".join(f"| {' | '.join(_markdown_row(name, both))} |\n" for name, both in report.workloads.items())
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    pairs = ", ".join(f"{both.speed_ratio.n} {name}" for name, both in report.workloads.items())
    return (
        f"{header}{rows}\nEach cell is standard → fast. Medians; the mean of top-1 agreement; in brackets the 95 % "
        f"interval. One stream at a time; pairs of answers: {pairs}. {report.machine}, at "
        f"{report.usd_per_hour:.2f} USD per hour; {versions}; {report.date:%Y-%m-%d}.\n"
    )


def _terminal_row(workload: str, variant: str, figures: VariantFigures, ratio: str) -> list[str]:
    return [
        workload,
        variant,
        f"{figures.output_tokens_per_s.value:.1f}",
        ratio,
        f"{figures.ttft_ms.value:.0f}",
        f"{figures.tpot_ms.value:.1f}",
        f"{figures.cost_usd_per_million_output_tokens.value:.2f}",
        f"{figures.top1_agreement.value:.1%}",
        f"{figures.mean_log_probability.value:.3f}",
    ]


def _markdown_row(workload: str, both: WorkloadFigures) -> list[str]:
    value, interval = _ratio(both.speed_ratio)
    standard, fast = both.standard, both.fast
    return [
        workload,
        f"**{value}**<br>{_unbroken(interval)}",
        _change(standard.output_tokens_per_s, fast.output_tokens_per_s, ".1f"),
        _change(standard.ttft_ms, fast.ttft_ms, ".0f"),
        _change(standard.cost_usd_per_million_output_tokens, fast.cost_usd_per_million_output_tokens, ".2f"),
        _change(standard.top1_agreement, fast.top1_agreement, ".1%"),
    ]


def _change(standard: Figure, fast: Figure, form: str) -> str:
    return _unbroken(f"{standard.value:{form}} → {fast.value:{form}}")


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _ratio(figure: Figure) -> tuple[str, str]:
    low, high = figure.interval
    return f"{figure.value:.2f}×", f"[{low:.2f}, {high:.2f}]"
