"""The page needs nothing from outside, and the chart keeps every mark and label inside its frame."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from evals import page
from evals.report import Report

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"
# The widest digit of common sans-serif fonts, as a share of the font's size.
DIGIT = 0.64


def scaled(report: Report, factor: float) -> Report:
    """The report with fast `factor` times as fast."""
    data = report.model_dump()
    for figures in data["workloads"].values():
        for figure in (figures["speed_ratio"], figures["fast"]["output_tokens_per_s"]):
            figure["value"] *= factor
            figure["interval"] = [end * factor for end in figure["interval"]]
    return Report.model_validate(data)


def test_the_page_holds_everything_it_needs(report: Report) -> None:
    html = page.html(report)
    assert not re.search(r"<script|<link|<img|@import|url\(|\bsrc=|\bhref=", html)
    assert html.count("<svg") == 2


def test_the_page_shows_each_workloads_ratio_with_its_interval(report: Report) -> None:
    html = page.html(report)
    assert "1.89×" in html
    assert "95 % interval 1.78 to 2.01" in html
    assert "97.1 %" in html
    assert report.git_sha in html


def test_what_users_named_is_escaped(report: Report) -> None:
    html = page.html(report.model_copy(update={"command": "twinspeed <script>alert(1)</script>"}))
    assert "<script>" not in html


@pytest.mark.parametrize("width", [340, 760])
@pytest.mark.parametrize("factor", [0.01, 1, 5, 80])
def test_the_chart_stays_inside_its_frame(report: Report, width: int, factor: float) -> None:
    root = ElementTree.fromstring(page.svg(scaled(report, factor), width))
    assert root.get("width") == str(width)
    height = float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.attrib["width"]) <= width
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["y"]) <= height - 4
        if text.get("font-weight") == "600":
            assert float(text.attrib["x"]) + len(text.text or "") * 14 * DIGIT <= width


def test_the_axis_has_round_ticks_that_do_not_touch(report: Report) -> None:
    for factor in (0.01, 0.3, 1, 2, 5, 80, 1000):
        for width in (340, 760):
            root = ElementTree.fromstring(page.svg(scaled(report, factor), width))
            ticks = [text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
            places = [float(tick.attrib["x"]) for tick in ticks]
            assert 2 <= len(ticks) <= 12
            assert all(right - left >= 50 for left, right in pairwise(places))
            assert re.fullmatch(r"(1|2|5)0*", (ticks[1].text or "").lstrip("0."))
