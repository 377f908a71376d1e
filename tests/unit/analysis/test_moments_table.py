"""What fills the fullest moment of a step, setting by setting, and the picture of each setting's step."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.analysis.charts.rows_chart import POINTS, moments_chart
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.tables.run_tables import moments
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


def followed(cell: Cell) -> CellResult:
    """A record whose step holds most two thirds through it; seed 1 a byte more than seed 0."""
    result = make_result(cell)
    held = [getattr(result, f"{name}_bytes") for name in ("parameters", "optimizer_states", "residuals")]
    most = int(result.in_flight_bytes or 0) + cell.seed
    steps = [(*held, 0, 0)] + [(*held, most if i == 200 else 9, 0) for i in range(300)]
    peak = sum(held) + most
    bytes_of = {"in_flight_bytes": most, "peak_states_bytes": peak}
    return replace(result, **bytes_of, per_rank=[], moments={"rank": 0, **pack_moments(steps)})


def test_each_setting_is_shown_by_its_fullest_seed_to_the_byte_and_has_a_panel_of_the_figure() -> None:
    table = moments(Run(Path("no-such-folder/x"), CELLS, {cell: followed(cell) for cell in CELLS}, {}, []))
    settings = [(model, scheme, 1) for model in ("gpt2-bytes", "vgg-digits") for scheme in ("baseline", "w+2d")]
    assert [(one["model"], one["scheme"], one["seed"]) for one in table.records] == settings
    for record in table.records:
        assert sum(record[f"peak_{name}_bytes"] for name in BANDS) == record["peak_states_bytes"]
        assert record["where"] == pytest.approx(201 / 300, abs=0.004), "200 of 300 operations come before it"
    assert len(table.body) == 4 and table.notes == []
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
