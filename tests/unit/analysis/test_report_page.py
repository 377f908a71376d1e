"""The parts of the page that need no browser."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.analysis.charts.draw import draw_all
from benchmarks.analysis.charts.look import SERIES
from benchmarks.analysis.charts.rows_chart import trade_off_chart
from benchmarks.analysis.charts.states_chart import BOUNDARY, memory_chart
from benchmarks.analysis.claims.claim import STATUSES, LedgerRow
from benchmarks.analysis.labels import ABSENT, MINUS
from benchmarks.analysis.load_run import Hole, Run
from benchmarks.analysis.page.page import (
    by_family,
    by_test,
    gaps,
    groups_of,
    head_of,
    number,
)
from benchmarks.analysis.tables.accuracy import accuracy
from benchmarks.analysis.tables.memory_table import memory
from benchmarks.core.cell import Cell
from resireduce.scheme import SCHEMES
from tests.records import make_result

HTML = Path(__file__).parents[3] / "benchmarks/analysis/page"


@pytest.fixture
def run(tmp_path):
    cells = [Cell(model="gpt2-bytes", scheme=scheme, seed=seed) for scheme in ("baseline", "w+2d") for seed in (0, 1)]
    cells += [Cell(model="gpt2-bytes", scheme="w+2d", gradients="streamed")]
    return Run(tmp_path, cells, {cell: make_result(cell) for cell in cells}, {}, [])


def test_rows_are_sorted_by_the_raw_values_of_their_record(run):
    table = memory(run)
    (group,) = groups_of(table)
    assert group.name == "gpt2-bytes" and len(head_of(table)) == len(group.rows[0]) == len(table.head) - 1
    place = [shown.text for shown in head_of(table)].index("Normalised")
    assert [float(row[place].value) for row in group.rows] == pytest.approx(
        [one["normalised"] for one in table.records]
    )
    assert all(row[0].is_text and not row[0].value for row in group.rows)


def rows_of(specification):
    """What a figure's marks are drawn from."""
    (rows,) = specification["datasets"].values()
    return rows


def test_bars_are_the_shares_of_the_baseline(run):
    table = memory(run)
    rows = rows_of(memory_chart(table.records))
    for place, record in enumerate(table.records):
        mine = [row for row in rows if row["row"] == place and row["view"] == BOUNDARY]
        assert sum(row.get("share", 0) for row in mine) == pytest.approx(100 * record["normalised"], abs=0.001)
        assert mine[-1]["at"] == pytest.approx(100 * record["peak_normalised"], abs=0.001)
        assert all(f"{record['residuals_bytes'] / 2**20:.2f} MiB" in row["tip"] for row in mine)
    assert {row["letter"] for row in rows if row.get("share", 0) > 10} == set("PGRO"), "told apart without colours"
    assert memory_chart([record | {"normalised": None} for record in table.records]) is None


def test_better_is_higher_where_a_lower_metric_is_better(run):
    worse = [
        one | {"metric_mean": one["metric_mean"] * (1 + number)} for number, one in enumerate(accuracy(run).records)
    ]
    rows = [row for row in rows_of(trade_off_chart(memory(run).records, worse)) if row["view"] == BOUNDARY]
    assert [row["value"] for row in rows] == sorted((row["value"] for row in rows), reverse=True), "perplexity rises"
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows) and len(rows) == 3


def test_exact_values_are_in_the_picture_and_its_bytes_are_the_same_each_time(run):
    tables = [memory(run), accuracy(run)]
    first, second = draw_all(tables), draw_all(tables)
    assert {name: one.svg for name, one in first.items()} == {name: one.svg for name, one in second.items()}
    assert {name: one.png for name, one in first.items()} == {name: one.png for name, one in second.items()}
    for name, rows in ((name, rows_of(one.specification)) for name, one in first.items()):
        shown = [row["tip"] for row in rows if "tip" in row and row.get("view") in (None, BOUNDARY, "metric")]
        assert shown and all(tip.split("\n")[-1] in first[name].svg for tip in shown)


def test_every_scheme_has_a_shape_and_a_colour():
    assert set(SCHEMES) <= set(SERIES) and len({shape for shape, _ in SERIES.values()}) == len(SERIES)


def test_the_ledger_tells_apart_what_was_tested():
    some = ledger_of("exp1-a", "exp1-b", "x", "y")
    tested, untested = by_test([some[3], *some[:3]])
    assert tested == ("Tested: 3 of 4 claims", some[:3]) and untested == ("Not run: 1 of 4 claims", some[3:])
    assert by_test([]) == []
    assert [number(-0.5, "%"), number(12345678), number(None, "%")] == [f"{MINUS}0.5 %", "12,345,678", ABSENT]
    assert by_family(some) == [("Experiment 1", some[:2]), ("x", [some[2]]), ("y", [some[3]])]


def ledger_of(*ids):
    common = {"statement": "s", "source": "x", "scope": "small models", "reason": "r", "command": "c"}
    return [LedgerRow(id=name, status=status, **common) for name, status in zip(ids, STATUSES, strict=False)]


def test_what_is_missing_is_one_list_with_each_command_once(run):
    cell = run.cells[0]
    empty = replace(run, results={}, holes={cell: Hole(cell.name, "oom", "8 GiB asked", "make x")})
    tables = [memory(empty), replace(accuracy(empty), lacks=(("2 rows of x", "c"), ("3 rows of y", "make b")))]
    found = {gap.command: gap.name for gap in gaps(empty, tables, ledger_of(*"abcd"))}
    assert found == {"make x": cell.name, "c": "Accuracy: 2 rows of x; 1 claim: d", "make b": "Accuracy: 3 rows of y"}
