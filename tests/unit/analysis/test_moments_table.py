"""What fills the fullest moment of a step, setting by setting, and the picture of each setting's step."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.analysis.charts.states_chart import POINTS, moments_chart
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.tables.memory_table import moments
from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import BANDS, pack_moments
from benchmarks.core.record import CellResult
from tests.records import make_result

CELLS = [
    Cell(model=model, scheme=scheme, gradients="streamed", seed=seed)
    for model in ("gpt2-bytes", "vgg-digits")
    for scheme in ("baseline", "w+2d")
    for seed in (0, 1)
]


def followed(cell: Cell, moments_of_all: int = 300) -> CellResult:
    """A record whose step holds most two thirds through it; seed 1 a byte more than seed 0."""
    result = make_result(cell)
    held = [getattr(result, f"{name}_bytes") for name in ("parameters", "optimizer_states", "residuals")]
    most = int(result.in_flight_bytes or 0) + cell.seed
    steps = [(*held, 0, 0)] + [(*held, most if 3 * i == 2 * moments_of_all else 9, 0) for i in range(moments_of_all)]
    peak = sum(held) + most
    bytes_of = {"in_flight_bytes": most, "peak_states_bytes": peak}
    return replace(result, **bytes_of, per_rank=[], moments={"rank": 0, **pack_moments(steps)})


def run_of(cells: list[Cell], results: dict[Cell, CellResult]) -> Run:
    return Run(Path("no-such-folder/x"), cells, results, {}, [])


@pytest.fixture(scope="module")
def run() -> Run:
    return run_of(CELLS, {cell: followed(cell) for cell in CELLS})


def test_a_setting_is_shown_by_its_fullest_seed_to_the_byte(run: Run) -> None:
    table = moments(run)
    settings = [(model, scheme, 1) for model in ("gpt2-bytes", "vgg-digits") for scheme in ("baseline", "w+2d")]
    assert [(one["model"], one["scheme"], one["seed"]) for one in table.records] == settings
    for record in table.records:
        assert sum(record[f"peak_{name}_bytes"] for name in BANDS) == record["peak_states_bytes"]
        assert 0.6 < record["where"] < 0.7
    assert table.group_starts == (0, 2) and len(table.body) == 4 and table.notes == []


def test_the_fullest_moment_is_where_it_is_among_the_operations() -> None:
    first = CELLS[0]
    (record,) = moments(run_of([first], {first: followed(first, moments_of_all=30)})).records
    assert record["where"] == pytest.approx(21 / 30), "20 of 30 operations come before it"


def test_records_from_before_are_not_drawn_and_counted(run: Run) -> None:
    older = run_of(CELLS, {cell: make_result(cell) if cell.scheme == "w+2d" else run.results[cell] for cell in CELLS})
    table = moments(older)
    assert {one["scheme"] for one in table.records} == {"baseline"} and table.notes[0].endswith("followed: 2.")
    nothing = moments(run_of(CELLS, {cell: make_result(cell) for cell in CELLS}))
    assert nothing.body == nothing.records == [] and moments_chart(nothing.drawn or []) is None


def test_the_figure_has_a_panel_for_each_setting_and_its_fullest_moment_in_it(run: Run) -> None:
    table = moments(run)
    (rows,) = moments_chart(table.drawn)["datasets"].values()  # type: ignore[arg-type, index]
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    assert len(panels) == 4 and len(rows) <= 4 * len(BANDS) * POINTS
    fullest = {
        model: max(one["peak_states_bytes"] for one in table.records if one["model"] == model)
        for model in {row["model"] for row in rows}
    }
    assert all(row["most"] == pytest.approx(fullest[row["model"]] / 2**20, abs=0.001) for row in rows), "one scale each"
    for record, panel in zip(table.records, panels, strict=True):
        heights: dict[float, float] = {}
        for row in (row for row in rows if row["panel"] == panel):
            heights[row["at"]] = heights.get(row["at"], 0) + row["mib"]
        assert max(heights.values()) == pytest.approx(record["peak_states_bytes"] / 2**20, abs=0.01)
        assert f"{record['peak_states_bytes'] / 2**20:,.2f} MiB" in panel
