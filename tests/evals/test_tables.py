"""The tables can be read: nothing wraps or is cut in a terminal, and Markdown has a row for each workload."""

import pytest
from rich.console import Console

from evals import tables
from evals.report import Report

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("width", [100, 160])
def test_the_terminal_table_fits(report: Report, width: int) -> None:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(tables.terminal(report))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert "…" not in captured.get()
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines if "%" in line and "interval" not in line]
    assert rows[:2] == [
        ["chat", "standard", "28.0", "61", "35.7", "0.99", "99.8%", "-0.284"],
        ["fast", "53.0", "1.89×", "[1.78,", "2.01]", "61", "18.9", "0.52", "97.1%", "-0.302"],
    ]
    assert len(rows) == 6


def test_markdown_has_a_row_for_each_workload_and_the_circumstances(report: Report) -> None:
    header, rule, *rest = tables.markdown(report).replace("\N{NO-BREAK SPACE}", " ").splitlines()
    rows, below = rest[:3], rest[-1]
    columns = header.count("|")
    assert all(row.count("|") == columns for row in (rule, *rows))
    assert rows[0] == "| chat | **1.89×**<br>[1.78, 2.01] | 28.0 → 53.0 | 61 → 61 | 0.99 → 0.52 | 99.8% → 97.1% |"
    assert "12 chat, 12 edit, 12 code" in below
    assert report.machine in below
    assert "0.10 USD per hour" in below
    # Two of them in a paragraph are a formula on GitHub.
    assert "$" not in tables.markdown(report)
