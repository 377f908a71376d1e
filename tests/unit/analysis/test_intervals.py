"""Intervals over seeds: the arithmetic, what it allows to say, and README's table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.statistics import Interval, interval, median_interval, paired
from benchmarks.analysis.summaries import intervals_table
from benchmarks.analysis.tables.run_tables import accuracy, paired_baseline
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.records import make_result, save_run

MATRIX = [
    {"model": "gpt2-bytes", "compressor": "none", "scheme": "none", "seed": [0, 1, 2]},
    {"model": "gpt2-bytes", "scheme": ["baseline", "none", "w+2d"], "seed": [0, 1, 2]},
    {"model": "gpt2-bytes", "compressor": "qsgd", "scheme": ["w", "baseline"], "seed": 1},
    {"model": "gpt2-bytes", "scheme": ["w", "baseline"], "density": 0.1, "seed": [2, 3]},
    {"model": "gpt2-bytes", "scheme": "w+2d", "gradients": "streamed", "seed": [0, 1, 2]},
]
METRIC = {0: 4.0, 1: 4.5, 2: 5.0, 3: 5.5}
WORSE = {"none": [0.9, 1.0, 1.1], "w+2d": [0.4, -0.2, 0.1]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def metric(cell: Cell) -> float:
        worse = WORSE.get(cell.scheme, [0.0] * 4) if cell.compressor == "topk" else [0.0] * 4
        return METRIC[cell.seed] + worse[cell.seed]

    def result(cell: Cell) -> CellResult:
        return replace(make_result(cell), metric=metric(cell), steps_per_second=2.0 + cell.seed)

    return save_run(tmp_path, {"matrix": MATRIX}, result)


def test_intervals_are_those_of_a_hand_example() -> None:
    """Nine tosses of a coin show at most one head in 10 of 512 cases, less than 2.5 %; six show none in 1 of 64."""
    assert median_interval([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]) == (5.0, 2.0, 8.0)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (3.5, 1.0, 6.0)
    assert interval([1.0, 2.0, 3.0]) == Interval(2.0, pytest.approx(4.302653 / 3**0.5), 3)
    assert interval([]) is None and interval([1.0]) == Interval(1.0, None, 1)
    assert paired({2: 5.0, 0: 1.0, 7: 0.0}, {0: 3.0, 2: 4.0, 1: 0.0}) == [-2.0, 1.0]


def test_settings_are_compared_with_the_baseline_of_their_compressor_and_density(folder: Path) -> None:
    run = load_run(folder)
    found = {(r["compressor"], r["scheme"], r["density"], r["gradients"]): r for r in accuracy(run).records}
    none, shared = found["topk", "none", 0.01, "kept"], found["topk", "w+2d", 0.01, "kept"]
    assert (none["difference_mean"], none["verdict"], none["pairs"]) == (pytest.approx(1.0), "higher", 3)
    assert none["difference_half_width"] == pytest.approx(4.302653 * 0.1 / 3**0.5)
    assert (shared["difference_mean"], shared["verdict"]) == (pytest.approx(0.1), "no difference seen")
    assert found["topk", "w", 0.1, "kept"]["difference_mean"] == 0 and found["topk", "w", 0.1, "kept"]["pairs"] == 2
    assert found["topk", "w", 0.1, "kept"]["verdict"] == "equal"
    assert found["qsgd", "w", 1.0, "kept"]["verdict"] == "n = 1"
    assert found["topk", "baseline", 0.01, "kept"]["difference_mean"] is None
    dense = paired_baseline(run, Cell(model="gpt2-bytes", compressor="none", scheme="none"))
    assert dense == Cell(model="gpt2-bytes", density=0.01)


def test_the_command_writes_json_and_the_table_of_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "mini.json"
    assert main(["summary", "intervals", "--run", str(folder), "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    text = capsys.readouterr().out
    assert intervals_table(rows) in text
    assert {row["steps_per_second"] for row in rows if row["seeds"] == 3} == {3.0}, "the mean of 2, 3 and 4"
    row = "gpt2-bytes, perplexity ↓ | none (no residual), kept | 3 | 80.0 % | 5.50 ± 1.49 | +1.00 ± 0.25, higher"
    assert f"| {row} |" in text
    (folder / f"cells/{Cell(model='gpt2-bytes').name}.json").unlink()
    assert main(["summary", "intervals", "--run", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "+1.05 ± 0.64, higher (2 seeds in common)" in text
    assert "Missing: 1 of 21 cells; see: python -m benchmarks report" in text


def test_shares_of_a_run_without_kept_gradients_count_them_as_the_parameters(tmp_path: Path) -> None:
    """As in config/precision.yaml: three copies of the model of the four with kept gradients, SGD with momentum."""
    streamed = {"model": "vgg-digits", "gradients": "streamed", "scheme": ["baseline", "w+2d"]}
    run = save_run(tmp_path, {"matrix": [streamed | {"residual_dtype": [None, "int4"]}]}, make_result)
    assert main(["summary", "intervals", "--run", str(run)]) == 0
    full, bits, shared, _ = json.loads((run / "intervals.json").read_text())["rows"]
    assert full["normalised"] == pytest.approx(3 / 4) and full["difference_mean"] is None
    assert bits["residual_dtype"] == "int4" and bits["baseline"].startswith("baseline, streamed")
    assert shared["scheme"] == "w+2d" and shared["normalised"] < 3 / 4 and shared["difference_mean"] == 0
