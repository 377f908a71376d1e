"""Compressors beside one another: rows from records, their table, and their pictures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.charts.draw import drawn
from benchmarks.analysis.charts.rivals_chart import contraction_chart, lost_chart
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.summaries import rivals
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from tests.records import make_result, save_run

MODEL = {"model": "vgg-digits", "observe": ["contraction"], "seed": [0, 1, 2]}
MATRIX = [
    MODEL | {"compressor": "none", "scheme": "none"},
    MODEL | {"compressor": "topk", "density": [0.01, 0.1]},
    MODEL | {"compressor": "qsgd", "scheme": "none", "seed": 1},
    MODEL | {"compressor": "demo", "scheme": "decayed", "seed": 7},
]
METRICS = {"none": [97.0, 98.0, 96.0], "topk": [96.0, 97.5, 96.0], "qsgd": [97.0, 97.0, 97.0]}


def point(sent: int, share: float) -> dict[str, Any]:
    return {"step": 1, "bytes": sent, "elements": 100, "contraction": share, "cosine": 1 - share, "density": share / 2}


def seen(cell: Cell) -> dict[str, Any]:
    """Three steps, of which the median counts."""
    if cell.compressor == "none":
        points = [point(4000, 0) | {"contraction": None, "cosine": None, "density": None} for _ in range(3)]
    else:
        sent = round(10_000 * cell.density) + 10 * cell.seed
        points = [point(sent + more, 0.5 + more / 1000) for more in (0, 100, 101)]
    return {"contraction": {"every": 4, "dense_bytes": 16, "points": points}}


def observed(cell: Cell) -> CellResult:
    metric = METRICS.get(cell.compressor, [90.0] * 8)[cell.seed]
    return replace(make_result(cell), metric=metric, observations=seen(cell))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_run(tmp_path, {"matrix": MATRIX}, observed)


def test_rows_compare_each_setting_with_no_compression_seed_by_seed(folder: Path) -> None:
    rows = {(row["compressor"], row["density"]): row for row in rivals(load_run(folder))["rows"]}
    topk, plain, demo = rows["topk", 0.01], rows["none", 1.0], rows["demo", 0.01]
    assert (topk["lost_mean"], topk["pairs"], topk["seeds"]) == (pytest.approx(0.5), 3, 3)
    assert topk["lost_half_width"] == pytest.approx(4.302653 * 0.5 / 3**0.5)
    assert topk["sent_bytes"] == 200 + 10 and topk["dense_bytes"] == 16
    assert topk["contraction"] == pytest.approx(0.6) and topk["density_sent"] == pytest.approx(0.3)
    assert topk["step_seconds"] == pytest.approx(0.05) and topk["total_bytes"] > plain["total_bytes"]
    assert plain["lost_mean"] == 0 and plain["contraction"] is plain["cosine"] is None and plain["sent_bytes"] == 4000
    assert rows["qsgd", 1.0]["pairs"] == 1 and rows["qsgd", 1.0]["lost_half_width"] is None
    assert demo["lost_mean"] is None and demo["pairs"] == 0, "no seed in common"


def test_where_less_is_better_more_is_lost() -> None:
    cells = expand({"matrix": [{"model": "gpt2-bytes", "compressor": ["none"], "scheme": "none"}]})
    cells += expand({"matrix": [{"model": "gpt2-bytes"}]})
    results = [replace(make_result(cell), metric=4.0 + i, observations=seen(cell)) for i, cell in enumerate(cells)]
    run = type("Run", (), {"settings": lambda self: {one.cell: [one] for one in results}})()
    assert [row["lost_mean"] for row in rivals(run)["rows"]] == [0.0, 1.0]


def test_the_command_writes_json_and_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cells" / "left-over.json").write_text("{}")
    assert main(["summary", "rivals", "--run", str(folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in printed[3:8]] == ["none", "topk", "topk", "qsgd", "demo"]
    assert "| 0.01 | baseline | 3 | 96.5 | 2.151 | 0.5 | 1.242 | 210 | 0.3 | 0.6 | 0.4 |" in printed[4]
    values = json.loads((folder / "rivals.json").read_text())
    assert len(values["rows"]) == 5 and values["measured"]["Commit"] and values["rows"][0]["metrics"]["2"] == 96.0


def test_a_run_that_did_not_observe_is_refused_with_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(model="vgg-digits")
    (tmp_path / "config.json").write_text(json.dumps({"matrix": [{"model": "vgg-digits"}]}))
    (tmp_path / "cells").mkdir()
    assert main(["summary", "rivals", "--run", str(tmp_path)]) == 2
    assert "has no finished cell (1 not run); make some with: make run RUN=rivals" in capsys.readouterr().err
    make_result(cell).save(tmp_path / f"cells/{cell.name}.json")
    assert main(["summary", "rivals", "--run", str(tmp_path)]) == 2
    assert "did not observe 'contraction'; give observe: [contraction]" in capsys.readouterr().err


def test_pictures_have_a_point_for_each_row_that_knows_its_value(folder: Path) -> None:
    rows = rivals(load_run(folder))["rows"]
    for chart, count in ((contraction_chart, 4), (lost_chart, 4)):
        specification = chart(rows)
        assert specification is not None
        (values,) = specification["datasets"].values()
        assert len(values) == count
        texts = drawn("rivals", specification).svg
        assert "topk 0.1<" in texts and "qsgd<" in texts
    assert contraction_chart([]) is lost_chart([]) is None
