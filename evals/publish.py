"""Brings the quickstart's report into the documentation: `python -m evals.publish runs/quickstart/report.json`.

Writes `docs/benchmarks/quickstart.json` and `.svg`, and the table of figures into `docs/benchmarks/quickstart.md` and
`README.md`, between the markers `<!-- figures: quickstart -->` and `<!-- /figures -->`. Run from the root of the tree.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from evals import page, report as reports, tables, workloads
from evals.report import Figure, Report, VariantFigures
from twinspeed import files
from twinspeed.benchmark import Benchmark
from twinspeed.errors import InputError, TwinspeedError

NAME = "quickstart"
START, END = f"<!-- figures: {NAME} -->", "<!-- /figures -->"
_FOLDER = Path("docs/benchmarks")
_WITH_TABLE = (_FOLDER / f"{NAME}.md", Path("README.md"))


def publish(report_path: Path, root: Path) -> list[Path]:
    """Publish the report below `root`; gives the files written. All is validated before anything is written.

    Raises:
        InputError: the report is invalid, or a file or a marker is missing.
    """
    report = reports.load(report_path)
    missing = [name for name in workloads.NAMES if name not in report.workloads]
    if missing:
        raise InputError(f"{report_path} has no figures of the workload {missing[0]!r}")
    try:
        benchmark = to_benchmark(report)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{report_path} cannot be published: {field}: {first['msg']}") from None
    texts = {
        root / _FOLDER / f"{NAME}.json": benchmark.model_dump_json(indent=2) + "\n",
        root / _FOLDER / f"{NAME}.svg": page.svg(report),
        **{root / path: _with_table(root / path, tables.markdown(report)) for path in _WITH_TABLE},
    }
    for path, text in texts.items():
        files.write_atomically(path, text)
    return list(texts)


def to_benchmark(report: Report) -> Benchmark:
    """The report's figures under flat keys, each with its interval."""
    figures: dict[str, Figure] = {}
    for workload, both in report.workloads.items():
        figures[f"{workload}_speed_ratio"] = both.speed_ratio
        for variant_name, variant in (("standard", both.standard), ("fast", both.fast)):
            for measure in VariantFigures.model_fields:
                figures[f"{workload}_{variant_name}_{measure}"] = getattr(variant, measure)
    return Benchmark(
        command="make bench-quickstart",
        date=report.date,
        git_sha=report.git_sha,
        machine=report.machine,
        versions=report.versions,
        seed=report.seed,
        rounds=report.rounds,
        results={key: figure.value for key, figure in figures.items()},
        intervals={key: figure.interval for key, figure in figures.items()},
    )


def _with_table(path: Path, table: str) -> str:
    """The text of `path` with `table` between its markers."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the table of figures belongs into {path}: {error.strerror}") from None
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    for marker, found in ((START, start), (END, end)):
        if not found:
            place = "" if marker == START else f" after {START}"
            raise InputError(f"{path} has no line {marker}{place}: put it where the table of figures belongs")
    return f"{before}{START}\n{table}{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 with one line on standard error where the user's input is at fault."""
    parser = argparse.ArgumentParser(
        prog="python -m evals.publish", description="Put the quickstart's figures into docs/benchmarks and README.md."
    )
    parser.add_argument("report", type=Path, help="report.json of `twinspeed quickstart`")
    try:
        written = publish(parser.parse_args(arguments).report, Path())
    except TwinspeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"wrote {', '.join(map(str, written))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
