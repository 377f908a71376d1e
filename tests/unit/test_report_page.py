"""The parts of the page that need no browser."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cell import Cell
from benchmarks.claims.finding import Finding
from benchmarks.report.html.bars import BOUNDARY, memory_chart
from benchmarks.report.html.chart import MOST, SERIES, Scale, css_name
from benchmarks.report.html.deviations import deviations
from benchmarks.report.html.dots import accuracy_chart
from benchmarks.report.html.ledger import by_test, entries, number
from benchmarks.report.html.rows import groups_of, head_of, leading_number
from benchmarks.report.html.scatter import trade_off_chart
from benchmarks.report.labels import ABSENT, MINUS
from benchmarks.report.load import Run
from benchmarks.report.memory import memory
from benchmarks.report.seeds import seeds
from benchmarks.report.table import Table
from resireduce.scheme import SCHEMES
from tests.records import make_result

HTML = Path(__file__).parents[2] / "benchmarks/report/html"


@pytest.fixture
def run(tmp_path):
    cells = [Cell(model="gpt2-bytes", scheme=scheme, seed=seed) for scheme in ("baseline", "w+2d") for seed in (0, 1)]
    cells += [Cell(model="gpt2-bytes", scheme="w+2d", gradients="streamed")]
    return Run(tmp_path, cells, {cell: make_result(cell) for cell in cells}, {}, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9.84", 9.84),
        ("100.0 %", 100),
        (f"{MINUS}1.16 ± 0.95", -1.16),
        ("±0.00", 0),
        ("1,234", 1234),
        ("2 KiB", 2048),
        ("1.5 GiB of 3", 1.5 * 2**30),
        ("oom", None),
        ("", None),
        (f"{ABSENT} 3", None),
    ],
)
def test_the_number_that_a_text_begins_with(text, value):
    assert leading_number(text) == value


def test_rows_are_sorted_by_the_raw_values_of_their_record(run):
    table = memory(run)
    (group,) = groups_of(table)
    assert group.name == "gpt2-bytes" and len(head_of(table)) == len(group.rows[0]) == len(table.head) - 1
    place = [shown.text for shown in head_of(table)].index("Normalised")
    assert [float(row[place].value) for row in group.rows] == pytest.approx(
        [one["normalised"] for one in table.records]
    )
    assert all(row[0].is_text and not row[0].value for row in group.rows)


def test_groups_of_which_nothing_is_measured_are_known():
    records = [{"measured": None}, {"measured": 1.0}, {"measured": None}]
    body = [["a", "x", ABSENT], ["", "y", "1"], ["b", "z", ABSENT]]
    table = Table("t", "T", "", records, ["Model", "Line", "Measured"], body, "", "", 2, (0, 2))
    assert [(group.name, group.empty) for group in groups_of(table)] == [("a", False), ("b", True)]
    assert [group.empty for group in groups_of(replace(table, records=[{}] * 3))] == [False, False]


def test_bars_are_the_shares_of_the_baseline(run):
    table = memory(run)
    chart = memory_chart(table.records)
    panel = next(one for one in chart.panels if one.view == BOUNDARY)
    whole = 100 / (1.02 * max(100, *(100 * one["peak_normalised"] for one in table.records)))
    for mark, record in zip(panel.marks, table.records, strict=True):
        widths = [float(one) for one in re.findall(r'width="([\d.]+)%"><rect', mark.drawing)]
        assert sum(widths) == pytest.approx(100 * record["normalised"] * whole, abs=0.05)
        assert f"{record['residuals_bytes'] / 2**20:.2f} MiB" in mark.tip
    assert memory_chart([record | {"normalised": None} for record in table.records]) is None


def test_figures_leave_out_what_is_too_much_and_what_means_nothing(run):
    record = seeds(run).records[0]
    many = [record | {"density": 1 / number} for number in range(2, MOST + 7)]
    chart = accuracy_chart(many)
    assert [(len(panel.marks), panel.more) for panel in chart.panels] == [(MOST, 5)]
    assert accuracy_chart([one | {"data": "synthetic"} for one in many]) is None


def test_better_is_higher_where_a_lower_metric_is_better(run):
    chart = trade_off_chart(memory(run).records, seeds(run).records)
    heights = {mark.label: float(re.findall(r' y="([\d.]+)%"', mark.drawing)[0]) for mark in chart.panels[0].marks}
    assert len(heights) == 3 and all(0 <= height <= 100 for height in heights.values())
    worse = [one | {"metric_mean": one["metric_mean"] * (1 + number)} for number, one in enumerate(seeds(run).records)]
    marks = trade_off_chart(memory(run).records, worse).panels[0].marks
    places = [float(re.findall(r' y="([\d.]+)%"', mark.drawing)[0]) for mark in marks]
    assert places == sorted(places), "perplexity rises, so points go down"


@pytest.mark.parametrize(("low", "high"), [(0, 103), (-1, 1), (1e-6, 2e-6), (99.1, 99.2), (-5e9, 3e9)])
def test_ticks_are_round_few_and_in_their_place(low, high):
    scale = Scale(low, high)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 6
    for place, text in ticks:
        assert place == pytest.approx(scale.at(float(text.replace(MINUS, "-"))), abs=0.01)


def test_every_scheme_has_a_shape_and_a_colour():
    shapes = (HTML / "shapes.svg.j2").read_text()
    style = (HTML / "page.css").read_text()
    assert set(SCHEMES) <= set(SERIES)
    for series in SERIES:
        assert f'id="shape-{css_name(series)}"' in shapes
        assert re.search(rf"\.s-{css_name(series)}[ ,]", style)


def test_the_deviations_are_html_without_links():
    html = deviations()
    assert "<h1" not in html and html.count("<table") == 3 and "<a " not in html
    assert "stored" in html and html.count("<p>") == html.count("</p>")
    assert deviations(Path("nowhere.md")) == ""


def test_deviations_cannot_break_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n<script>x()</script> and [text](javascript:x()) ![](http://example.org/x.png)\n")
    html = deviations(page)
    assert "<script" not in html and "Title" not in html and "<img" not in html


def test_the_ledger_tells_apart_what_was_tested():
    common = {"statement": "s", "source": "x", "scope": "paper", "reason": "r", "command": "c"}
    some = [
        Finding(id=str(i), status=status, **common) for i, status in enumerate(("not run", "reproduced", "not run"))
    ]
    assert [(words, [one.id for one in found]) for words, found in by_test(some)] == [
        ("Tested: 1 of 3 claims", ["1"]),
        ("Not run: 2 of 3 claims", ["0", "2"]),
    ]
    assert by_test([]) == []
    entry = entries([replace(some[1], value=-0.5, interval=(-1.0, 0.0), unit="%", seeds=5)])[0]
    assert (entry.value, entry.interval, entry.published) == (f"{MINUS}0.5 %", f"[{MINUS}1, 0]", ABSENT)
    assert number(12345678) == "12,345,678"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(scheme):
    """WCAG 2.2, 1.4.3: 4.5 to 1; and 3 to 1 for marks (1.4.11)."""
    blocks = re.findall(r":root \{(.*?)\}", (HTML / "page.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]+)", blocks[scheme == "dark"]))
    for ink in ("ink", "soft", "accent", "warn", "good", "bad"):
        for ground in ("paper", "tint"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    style = (HTML / "page.css").read_text()
    for colour in re.findall(r"\.s-[\w-]+[^{]*\{ color: (#[0-9a-f]{6})", style):
        assert contrast(colour, colours["paper"]) >= 3, colour


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
