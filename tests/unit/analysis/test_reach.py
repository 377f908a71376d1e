"""Steps to a level of the metric: which level, the steps of each seed, several runs as one, and times over links."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.charts.curves_chart import times_chart
from benchmarks.analysis.load_run import Hole, load_run
from benchmarks.analysis.results_page import RATES, Reference
from benchmarks.analysis.summaries import joined, reach, steps_to
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.records import make_result, save_run

MODEL = {"model": "gpt2-bytes", "seed": [0, 1]}
BASELINE = {"title": "Baseline", "matrix": [MODEL | {"density": 0.01}]}
HALF = {"title": "Half precision", "matrix": [MODEL | {"compressor": "fp16", "scheme": "none"}]}
BEFORE = {
    "baseline": {"matrix": [MODEL | {"density": 0.1}]},
    "short": {"matrix": [MODEL | {"density": 0.01, "scheme": "w"}]},
}
ENDS = {("topk", "baseline"): [41.0, 43.0], ("fp16", "none"): [39.0, 37.0], ("topk", "w"): [42.0, 44.0]}


@pytest.mark.parametrize(
    ("history", "level", "higher", "steps"),
    [
        ([[10, 90.0], [20, 96.0], [30, 98.0]], 97.0, True, 25.0),
        ([[10, 60.0], [20, 40.0], [30, 50.0]], 45.0, False, 17.5),
        ([[10, 60.0], [20, None], [30, 40.0]], 50.0, False, 20.0),
        ([[10, 30.0], [20, 40.0]], 45.0, False, 10.0),
        ([[10, 60.0], [20, 50.0]], 45.0, False, None),
    ],
)
def test_between_two_evaluations_a_metric_is_a_straight_line(
    history: list[list[float | None]], level: float, higher: bool, steps: float | None
) -> None:
    assert steps_to(history, level, higher) == steps


def trained(cell: Cell) -> CellResult:
    """From 60 to the end, in 200 steps."""
    end = ENDS[cell.compressor, cell.scheme][cell.seed]
    return replace(make_result(cell), metric=end, metric_history=[[100, 60.0], [200, end]])


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Two runs, with a baseline each, of which that of the second counts."""
    first = save_run(tmp_path / "before", {"parts": BEFORE}, trained)
    second = save_run(tmp_path / "now", {"parts": {"baseline": BASELINE, "fp16": HALF}}, trained)
    return [str(first), str(second)]


def test_the_level_is_what_the_baseline_reaches_with_its_worst_seed(runs: list[str]) -> None:
    assert main(["summary", "reach", "--run", runs[0], "--run", runs[1]]) == 0
    rows = {row["system"]: row for row in json.loads((Path(runs[0]) / "reach.json").read_text())["rows"]}
    assert list(rows) == ["baseline", "short", "fp16"] and {row["level"] for row in rows.values()} == {43.0}
    assert rows["baseline"]["density"] == 0.01, "that of the last run"
    assert rows["fp16"]["steps"] == {"0": pytest.approx(100 + 1700 / 21), "1": pytest.approx(100 + 1700 / 23)}
    assert rows["short"]["steps"]["1"] is None and rows["short"]["steps_mean"] is None
    assert rows["baseline"]["curve"] == [[100, 60.0], [200, 42.0]]


def test_a_seed_that_diverged_never_reaches_the_level_and_what_one_run_has_is_not_missing(runs: list[str]) -> None:
    run = load_run(Path(runs[1]))
    gone = next(cell for cell in run.results if cell.compressor == "fp16" and cell.seed == 1)
    del run.results[gone]
    run.holes[gone] = Hole(gone.name, "diverged", "step 9: loss is nan", "")
    (row,) = [one for one in reach(run)["rows"] if one["system"] == "fp16"]
    assert row["steps"] == {0: pytest.approx(100 + 1700 / 21), 1: None} and row["steps_mean"] is None
    other = load_run(Path(runs[0]))
    other.results[gone] = make_result(gone)
    both = joined([other, run])
    assert not both.holes and gone in both.results


def test_a_time_is_steps_times_the_seconds_of_a_step_over_the_same_links(runs: list[str], tmp_path: Path) -> None:
    output = tmp_path / "reach.json"
    assert main(["summary", "reach", "--run", runs[0], "--run", runs[1], "--output", str(output)]) == 0
    plain = {"gradients": "kept", "residual_dtype": None, "optimizer": None}
    timed = [
        plain | {"compressor": compressor, "scheme": scheme, "density": density, "median": 0.5, "low": 0.4, "high": 0.7}
        for compressor, scheme, density in (("topk", "baseline", 0.01), ("topk", "w", 0.01), ("fp16", "none", 1.0))
    ]
    (tmp_path / "time").mkdir()
    for rate in RATES:
        (tmp_path / f"time/gpt2-bytes-{rate}.json").write_text(json.dumps({"rows": timed}))
    rows = Reference(tmp_path).times()
    assert [(row["system"], row["rate"]) for row in rows[-2:]] == [("fp16", rate) for rate in RATES]
    mean, half = rows[-1]["steps_mean"], rows[-1]["steps_half_width"]
    expected = {"median": 0.5 * mean, "low": 0.4 * (mean - half), "high": 0.7 * (mean + half)}
    assert rows[-1]["time"] == pytest.approx(expected)
    assert next(row for row in rows if row["system"] == "short")["time"] is None
    drawn = json.dumps(times_chart(rows))
    assert "Half precision" in drawn and "100 Mbit/s" in drawn
