"""Residuals in fewer bits, against the full residual, seed by seed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.__main__ import main
from benchmarks.analysis.statistics import t_quantile
from tests.records import make_result, save_run

CONFIG = yaml.safe_load((Path(__file__).parents[3] / "benchmarks/config/precision.yaml").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {key: value for key, value in CONFIG.items() if key != "run"}
    config["matrix"] = [{**entry, "seed": [0, 1, 2, 3, 4]} for entry in config["matrix"]]
    # Another seed shifts all settings alike, and w+2d is worse by one or two.
    metric = lambda cell: 50.0 + 3 * cell.seed - (1 + cell.seed % 2) * (cell.scheme == "w+2d")  # noqa: E731
    return save_run(tmp_path, config, lambda cell: replace(make_result(cell), metric=metric(cell)))


def test_settings_are_compared_seed_by_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precision", "--run", str(folder)]) == 0
    rows = json.loads((folder / "precision.json").read_text())["rows"]
    assert len(rows) == 32 and all(row["seeds"] == 5 for row in rows)
    shared = [row for row in rows if row["scheme"] == "w+2d"]
    assert {row["difference_mean"] for row in shared} == {-1.4}
    assert {round(row["difference_half_width"], 6) for row in shared} == {
        round(t_quantile(0.975, 4) * (0.3 / 5) ** 0.5, 6)
    }
    assert {row["difference_mean"] for row in rows if row["scheme"] == "baseline"} == {0.0}
    full = next(row for row in rows if (row["model"], row["scheme"]) == ("resnet-digits", "baseline"))
    assert full["normalised"] == pytest.approx(3 / 4), "three copies of the model of the four with kept gradients"
    text = capsys.readouterr().out
    assert (
        "| resnet-digits, accuracy ↑ | w+2d | int4 | 5 |" in text
        and "\N{MINUS SIGN}1.400 ± 0.680 |" in text
        and "half of a 95 % interval" in text
    )


def test_streamed_gradients_are_not_compared_with_kept_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = {"model": "vgg-digits", "scheme": "baseline", "gradients": ["kept", "streamed"]}
    matrix = [baseline, {"model": "vgg-digits", "scheme": "w+2d", "gradients": "streamed"}]
    metric = lambda cell: {"kept": 10.0, "streamed": 50.0}[cell.gradients] - (cell.scheme == "w+2d")  # noqa: E731
    run = save_run(tmp_path, {"matrix": matrix}, lambda cell: replace(make_result(cell), metric=metric(cell)))
    assert main(["precision", "--run", str(run)]) == 0
    rows = json.loads((run / "precision.json").read_text())["rows"]
    assert [row["difference_mean"] for row in rows] == [0.0, 0.0, -1.0]


def test_without_a_baseline_nothing_is_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.glob("cells/vgg-digits.topk.baseline.streamed.d0.01*"):
        path.unlink()
    assert main(["precision", "--run", str(folder)]) == 2
    assert "vgg-digits: no cell of scheme baseline in full precision" in capsys.readouterr().err
