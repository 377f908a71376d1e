"""docs/results.md is made from results/reference; the few figures elsewhere are those of the records they name."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import COMMANDS, MEASURES, main
from benchmarks.analysis import labels
from benchmarks.analysis.results_page import PAGE, REFERENCE, TEMPLATE, render
from benchmarks.analysis.statistics import interval

ROOT = Path(__file__).parents[3]
MARK = re.compile(r"([0-9][0-9.,]*)( %)?<!-- = (\S+) (\w+) (.*?): (\S+) -->")
"""A figure, and where it comes from: file, list, fields of the record, and the field of the figure (or a/b, or 1-a)."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the page, its template and the measurements."""
    for path in [ROOT / PAGE, ROOT / TEMPLATE, *(ROOT / REFERENCE).rglob("*.json")]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return tmp_path


def edit(project: Path, name: str, **values: Any) -> None:
    path = project / REFERENCE / f"{name}.json"
    found = json.loads(path.read_text())
    found["rows"][0].update(values)
    path.write_text(json.dumps(found))


def test_the_page_says_what_was_measured() -> None:
    assert render(ROOT) == (ROOT / PAGE).read_text(), "write it anew with: python -m benchmarks pages"


def figures() -> list[Any]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [pytest.param(*one, id=f"{page.stem}-{one[4]}") for page in pages for one in MARK.findall(page.read_text())]


@pytest.mark.parametrize(("figure", "percent", "file", "name", "wanted", "field"), figures())
def test_a_figure_is_that_of_its_record(
    figure: str, percent: str, file: str, name: str, wanted: str, field: str
) -> None:
    fields = dict(one.split("=") for one in wanted.split())
    rows = json.loads((ROOT / REFERENCE / f"{file}.json").read_text())[name]
    [row] = [row for row in rows if all(str(row.get(key)) == value for key, value in fields.items())]
    first, _, second = field.removeprefix("1-").partition("/")
    value = row[first] / (row[second] if second else 1)
    value = 1 - value if field.startswith("1-") else value
    digits = len(figure.partition(".")[2])
    assert figure == f"{value * (100 if percent or field.startswith('1-') else 1):.{digits}f}"


CHANGES = [
    ("links", {"median": 9.0}, "| no compression | 9.000 (0.732 to 0.742) | 1.0 |"),
    ("mini", {"normalised": 0.5}, "| 50.0 % |"),
    ("rivals", {"contraction": 0.456}, "| 0.456 |"),
    ("systems", {"lost_mean": 9.0, "lost_half_width": 0.25}, "| **+9.00 ± 0.25** |"),
    ("precision", {"normalised": 0.123}, "12.3 %"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "values", "text"), CHANGES, ids=[one[0] for one in CHANGES])
def test_a_changed_measurement_changes_the_page(project: Path, file: str, values: dict[str, Any], text: str) -> None:
    before = render(project)
    edit(project, file, **values)
    after = render(project)
    assert after != before and text in after


def test_the_command_writes_the_page_and_its_pictures(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project, "links", median=9.0)
    monkeypatch.chdir(project)
    assert main(["pages"]) == 0 and (project / "docs/systems.svg").exists()
    assert "| no compression | 9.000 (" in (project / PAGE).read_text()


def test_what_no_gpu_has_measured_is_not_in_the_table(project: Path) -> None:
    assert "Measured: one NVIDIA H200" in render(project)
    path = project / REFERENCE / "nvidia-h200/memory.json"
    found = json.loads(path.read_text())
    found["cases"] = [one for one in found["cases"] if not one["name"].startswith("gpt2-large.topk.baseline.kept.")]
    path.write_text(json.dumps(found))
    head = f"| gpt2-large | 12.7 % | {labels.ABSENT}"
    (row,) = [line for line in render(project).splitlines() if line.startswith(head)]
    assert row.count(labels.ABSENT) == 9, "there is nothing to compare it with"
    found["provenance"] |= {"device": "cpu", "uuid": None}
    path.write_text(json.dumps(found))
    assert "Measured: one NVIDIA H200" not in render(project)


MEANS = (("metrics", "metric_mean", "metric_half_width", "seeds"), ("ratios", "ratio", "half_width", "pairs"))


def test_committed_means_are_those_of_the_values_beside_them() -> None:
    """A mean that nobody measured would stand on a page."""
    rows = [row for path in (ROOT / REFERENCE).glob("*.json") for row in json.loads(path.read_text()).get("rows", [])]
    found = [(row, names) for row in rows for names in MEANS if names[0] in row and names[1] in row]
    assert len(found) > 400
    for row, (name, mean, half, count) in found:
        values = row[name].values() if isinstance(row[name], dict) else row[name]
        one = interval([*values])
        assert one is not None and row[count] == one.n
        assert [row[mean], row[half]] == pytest.approx([one.mean, one.half_width]), row


def test_commands_of_the_pages_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks/config").glob("*.yaml")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages if path.name != "CHANGELOG.md")
    assert {*re.findall(r"python3? -m benchmarks ([a-z]+)", text)} <= COMMANDS.keys()
    measured = set(re.findall(r"python3? -m benchmarks measure ([a-z-]+)(?: ([a-z-]+))?", text))
    assert {one for one, _ in measured} <= MEASURES.keys() and not {more for _, more in measured} & MEASURES.keys()
