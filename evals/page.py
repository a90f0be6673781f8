"""The comparison for a person: one HTML page that needs nothing from outside, and its bar chart."""

import math

import jinja2

from evals.report import Report

_WIDE, _NARROW = 760, 340
# A tick label such as `1000` and room around it.
_PIXELS_PER_TICK = 60


def html(report: Report) -> str:
    """The page `report.html`. A phone is shown a narrower chart, since a scaled one could not be read."""
    charts = {"wide": svg(report, _WIDE), "narrow": svg(report, _NARROW)}
    return _templates().get_template("report.html").render(report=report, charts=charts)


def svg(report: Report, width: int = _WIDE) -> str:
    """Output tokens/s of both variants by workload, as one SVG element `width` pixels wide on white."""
    left, right = 76, 60
    plot = width - left - right
    highest = max(
        max(variant.output_tokens_per_s.interval[1], variant.output_tokens_per_s.value)
        for figures in report.workloads.values()
        for variant in (figures.standard, figures.fast)
    )
    ticks = _ticks(highest, plot // _PIXELS_PER_TICK)
    return (
        _templates()
        .get_template("chart.svg")
        .render(report=report, width=width, left=left, ticks=ticks, scale=plot / ticks[-1])
    )


def _ticks(highest: float, most: int) -> list[float]:
    """Round numbers from 0 to the first at or above `highest`, in at most `most` steps of 1, 2 or 5 × 10^k."""
    magnitude = 10.0 ** math.floor(math.log10(highest / most))
    step = next(step * magnitude for step in (1, 2, 5, 10) if math.ceil(highest / (step * magnitude)) <= most)
    return [step * index for index in range(math.ceil(highest / step) + 1)]


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("evals", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
