"""Systems beside one another: rows from parts of a config, their table and picture."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.charts.draw import drawn
from benchmarks.analysis.charts.rivals_chart import systems_chart
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.summaries import links_words, systems
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from tests.records import make_result, save_run
from tests.unit.analysis.test_rivals import MATRIX, MODEL, observed

SYSTEMS = {
    "dense": {"title": "No compression", "matrix": [MODEL | {"compressor": "none", "scheme": "none"}]},
    "baseline": {"title": "Baseline", "about": "Top-k.", "matrix": [MODEL | {"density": 0.01}]},
    "other": {"matrix": [MODEL | {"compressor": "qsgd", "scheme": "none", "seed": [1, 2]}]},
}


@pytest.fixture
def systems_folder(tmp_path: Path) -> Path:
    return save_run(tmp_path, {"parts": SYSTEMS}, observed)


def test_systems_are_parts_and_stand_beside_no_compression_and_the_memory_of_baseline(
    systems_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", "systems", "--run", str(systems_folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in printed[3:6]] == ["No compression", "Baseline", "other"]
    values = json.loads((systems_folder / "systems.json").read_text())
    rows = {row["system"]: row for row in values["rows"]}
    assert rows["other"]["pairs"] == 2 and rows["other"]["lost_mean"] == 0.0 and rows["other"]["about"] == "other"
    assert rows["baseline"]["lost_mean"] == pytest.approx(0.5) and rows["baseline"]["held_share"] == 1.0
    assert rows["dense"]["held_share"] == rows["dense"]["total_bytes"] / rows["baseline"]["total_bytes"]


def test_cells_outside_of_parts_are_no_system(systems_folder: Path) -> None:
    (systems_folder / "config.json").write_text(json.dumps({"parts": SYSTEMS, "matrix": MATRIX}))
    assert [row["system"] for row in systems(load_run(systems_folder))["rows"]] == list(SYSTEMS)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "config.json cannot be read (Expecting property name"),
        ("[]", "config.json cannot be read"),
        (json.dumps({"matrix": MATRIX}), "has no parts, which are systems; make some with: make run RUN=systems"),
        (json.dumps({"parts": {"one": {"matrix": [{"model": "gone"}]}}}), "model: 'gone' is not known; allowed: bert"),
        (
            json.dumps({"parts": {"one": {"matrix": [{"model": "vgg-digits", "seed": 9}]}}}),
            "has no finished cell (1 not run); make some with: make run RUN=systems",
        ),
    ],
)
def test_a_run_that_has_no_systems_is_refused_in_one_line(
    systems_folder: Path, capsys: pytest.CaptureFixture[str], config: str, said: str
) -> None:
    (systems_folder / "config.json").write_text(config)
    assert main(["summary", "systems", "--run", str(systems_folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: run: ") and said in line


def test_a_system_of_several_settings_is_refused(systems_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = SYSTEMS | {
        "other": {"matrix": [MODEL | {"density": 0.01}, MODEL | {"compressor": "none", "scheme": "none"}]}
    }
    (systems_folder / "config.json").write_text(json.dumps({"parts": both}))
    assert main(["summary", "systems", "--run", str(systems_folder)]) == 2
    assert "part other: vgg-digits has several settings; give one for each model" in capsys.readouterr().err


def test_the_picture_of_systems_has_a_point_for_each(systems_folder: Path) -> None:
    specification = systems_chart(systems(load_run(systems_folder))["rows"])
    assert specification is not None and "Baseline<" in drawn("systems", specification).svg
    assert systems_chart([]) is None


def test_it_is_said_to_what_links_were_slowed_and_where_they_were_not(
    systems_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert links_words(load_run(systems_folder).results.values()) == ""
    for number, path in enumerate(sorted((systems_folder / "cells").glob("*.json"))):
        known = CellResult.load(path)
        rates = {"node1": "100Mbit", "node2": "100Mbit"} if number else None
        replace(known, provenance=known.provenance | {"link_rates": rates, "cores": 2}).save(path)
    assert (
        main(
            ["summary", "systems", "--run", str(systems_folder), "--output", str(systems_folder / "systems-slurm.json")]
        )
        == 0
    )
    words = "not slowed (1 cell); node1 100Mbit, node2 100Mbit (7 cells)"
    assert f"Links slowed to: {words}" in capsys.readouterr().out


# --- Learning rates, each setting's own ---


RATES = [0.003, 0.01, 0.03]
TUNE = {
    "dense": {"title": "No compression", "matrix": [MODEL | {"compressor": "none", "scheme": "none", "seed": 1}]},
    "plain": {"matrix": [MODEL | {"optimizer": "plain-sgd", "residual_dtype": "int4", "seed": 1}]},
}
ACCURACY = {"dense": [90.0, 95.0, 91.0], "plain": [80.0, 85.0, 99.0]}


def tune_folder(folder: Path) -> Path:
    def make(cell: Cell) -> CellResult:
        accuracy = ACCURACY["plain" if cell.optimizer else "dense"][RATES.index(cell.workload.learning_rate)]
        return replace(make_result(cell), metric=accuracy, metric_history=[[200, accuracy]])

    parts = {name: part | {"defaults": {"learning_rate": RATES}} for name, part in TUNE.items()}
    return save_run(folder, {"parts": parts}, make)


def test_the_best_rate_of_each_part_is_measured_on_seeds_that_it_was_not_chosen_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tune_folder(tmp_path)
    assert main(["summary", "rates", "--run", str(folder)]) == 0
    assert "| 0.03 | True |" in capsys.readouterr().out
    rows = {row["system"]: row for row in json.loads((folder / "rates.json").read_text())["rows"]}
    assert (rows["dense"]["best"], rows["dense"]["border"], rows["plain"]["best"]) == (0.01, False, 0.03)
    assert rows["plain"]["tried"] == {"0.003": 80.0, "0.01": 85.0, "0.03": 99.0}
    config = read_config(folder / "rates.yaml")
    cells = expand({key: config[key] for key in ("defaults", "parts")})
    assert {(cell.workload.learning_rate, cell.optimizer, cell.residual_dtype) for cell in cells} == {
        (0.01, None, None),
        (0.03, "plain-sgd", "int4"),
    }
    assert sorted({cell.seed for cell in cells}) == [2, 3, 4, 5, 6] and len(cells) == 10


def test_rates_are_not_chosen_before_all_trials_have_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tune_folder(tmp_path)
    next((folder / "cells").glob("*plain-sgd.lr0.003*")).unlink()
    assert main(["summary", "rates", "--run", str(folder)]) == 2
    assert "lacks 1 cells, such as" in capsys.readouterr().err
