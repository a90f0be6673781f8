"""The quickstart's figures reach the documentation whole, or not at all."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evals import publish
from evals.report import Report, VariantFigures
from twinspeed import benchmark
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

PAGE = Path("docs/benchmarks/quickstart.md")
TEXT = "# Title\n\n<!-- figures: quickstart -->\nold table\n<!-- /figures -->\n\n<!-- /figures --> after\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source tree with the two files that hold the table."""
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text(TEXT)
    (tmp_path / "README.md").write_text(TEXT)
    return tmp_path


@pytest.fixture
def report_path(report: Report, root: Path) -> Path:
    path = root / "report.json"
    path.write_text(report.model_dump_json())
    return path


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_json_has_flat_keys_with_an_interval_each(report: Report, report_path: Path, root: Path) -> None:
    publish.publish(report_path, root)
    path = root / "docs/benchmarks/quickstart.json"
    published = benchmark.load(path)
    assert list(json.loads(path.read_text())) == [
        "command",
        "date",
        "git_sha",
        "machine",
        "versions",
        "seed",
        "rounds",
        "results",
        "intervals",
    ]
    assert set(published.results) == {f"{workload}_speed_ratio" for workload in ("chat", "edit", "code")} | {
        f"{workload}_{variant}_{measure}"
        for workload in ("chat", "edit", "code")
        for variant in ("standard", "fast")
        for measure in VariantFigures.model_fields
    }
    assert set(published.intervals) == set(published.results)
    edit = report.workloads["edit"]
    assert published.results["edit_speed_ratio"] == edit.speed_ratio.value
    assert published.intervals["edit_speed_ratio"] == edit.speed_ratio.interval
    assert published.results["edit_fast_cost_usd_per_million_output_tokens"] == pytest.approx(0.1 / 120 / 3600 * 1e6)
    assert (published.date, published.git_sha, published.seed) == (report.date, report.git_sha, report.seed)


def test_the_table_replaces_what_is_between_the_markers_alone(report_path: Path, root: Path) -> None:
    publish.publish(report_path, root)
    for path in (root / PAGE, root / "README.md"):
        text = path.read_text()
        assert text.startswith("# Title\n\n<!-- figures: quickstart -->\n| workload |")
        assert text.endswith(".\n<!-- /figures -->\n\n<!-- /figures --> after\n")
        assert "old table" not in text
        assert "**4.29×**" in text


def test_the_chart_stands_alone_on_white(report_path: Path, root: Path) -> None:
    publish.publish(report_path, root)
    svg = ElementTree.parse(root / "docs/benchmarks/quickstart.svg").getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    background = svg[0]
    assert background.get("fill") == "#fff"
    assert (background.get("width"), background.get("height")) == (svg.get("width"), svg.get("height"))


def test_publishing_again_changes_nothing(report_path: Path, root: Path) -> None:
    publish.publish(report_path, root)
    first = contents(root)
    publish.publish(report_path, root)
    assert contents(root) == first


@pytest.mark.parametrize("path", [PAGE, Path("README.md")])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("no markers", "has no line <!-- figures: quickstart -->"),
        ("<!-- /figures -->\n<!-- figures: quickstart -->\n", "has no line <!-- /figures --> after"),
    ],
)
def test_without_its_place_nothing_is_written(
    report_path: Path, root: Path, path: Path, text: str | None, message: str
) -> None:
    (root / path).unlink()
    if text is not None:
        (root / path).write_text(text)
    before = contents(root)
    with pytest.raises(InputError, match=message) as refused:
        publish.publish(report_path, root)
    assert str(root / path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert contents(root) == before


def test_a_report_that_cannot_be_published_is_refused(report: Report, report_path: Path, root: Path) -> None:
    chat_only = report.model_copy(update={"workloads": {"chat": report.workloads["chat"]}})
    for broken, message in (
        (chat_only, "no figures of the workload 'edit'"),
        (report.model_copy(update={"git_sha": "main"}), "git_sha"),
    ):
        report_path.write_text(broken.model_dump_json())
        before = contents(root)
        with pytest.raises(InputError, match=message) as refused:
            publish.publish(report_path, root)
        assert "\n" not in str(refused.value)
        assert contents(root) == before


def test_the_command(
    report_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert publish.main(["report.json"]) == 0
    assert "docs/benchmarks/quickstart.json" in capsys.readouterr().out
    assert publish.main(["absent.json"]) == 2
    assert capsys.readouterr().err.startswith("error: no report at absent.json")
    with pytest.raises(SystemExit) as usage:
        publish.main([])
    assert usage.value.code == 2
    assert "usage: python -m evals.publish" in capsys.readouterr().err
