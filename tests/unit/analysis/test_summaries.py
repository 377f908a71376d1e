"""What runs are summed up as: compressors and systems beside one another, rates, and models that tell schemes apart."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.statistics import t_quantile
from benchmarks.analysis.tables.run_tables import headings, load_tells
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from tests.records import make_result, save_run

Say = pytest.CaptureFixture[str]
MODEL = {"model": "vgg-digits", "observe": ["contraction"], "seed": [0, 1, 2]}
DENSE = MODEL | {"compressor": "none", "scheme": "none"}
MATRIX = [
    DENSE,
    MODEL | {"compressor": "topk", "density": [0.01, 0.1]},
    MODEL | {"compressor": "qsgd", "scheme": "none", "seed": 1},
    MODEL | {"compressor": "demo", "scheme": "decayed", "seed": 7},
]
SYSTEMS = {
    "dense": {"title": "No compression", "matrix": [DENSE]},
    "baseline": {"title": "Baseline", "about": "Top-k.", "matrix": [MODEL | {"density": 0.01}]},
    "other": {"matrix": [MODEL | {"compressor": "qsgd", "scheme": "none", "seed": [1, 2]}]},
}
METRICS = {"none": [97.0, 98.0, 96.0], "topk": [96.0, 97.5, 96.0], "qsgd": [97.0, 97.0, 97.0]}


def point(sent: int, share: float) -> dict[str, Any]:
    return {"step": 1, "bytes": sent, "elements": 100, "contraction": share, "cosine": 1 - share, "density": share / 2}


def observed(cell: Cell) -> CellResult:
    """Three observed steps, of which the median counts."""
    if cell.compressor == "none":
        points = [point(4000, 0) | {"contraction": None, "cosine": None, "density": None} for _ in range(3)]
    else:
        sent = round(10_000 * cell.density) + 10 * cell.seed
        points = [point(sent + more, 0.5 + more / 1000) for more in (0, 100, 101)]
    seen = {"contraction": {"every": 4, "dense_bytes": 16, "points": points}}
    return replace(make_result(cell), metric=METRICS.get(cell.compressor, [90.0] * 8)[cell.seed], observations=seen)


def test_rows_compare_each_setting_with_no_compression_seed_by_seed(tmp_path: Path, capsys: Say) -> None:
    folder = save_run(tmp_path, {"matrix": MATRIX}, observed)
    (folder / "cells" / "left-over.json").write_text("{}")
    assert main(["summary", "rivals", "--run", str(folder)]) == 0
    assert "| 0.01 | baseline | 3 | 96.5 | 2.151 | 0.5 | 1.242 | 210 | 0.3 | 0.6 | 0.4 |" in capsys.readouterr().out
    values = json.loads((folder / "rivals.json").read_text())
    assert len(values["rows"]) == 5 and values["measured"]["Commit"]
    rows = {(row["compressor"], row["density"]): row for row in values["rows"]}
    topk, plain, demo = rows["topk", 0.01], rows["none", 1.0], rows["demo", 0.01]
    assert (topk["lost_mean"], topk["pairs"], topk["seeds"]) == (pytest.approx(0.5), 3, 3)
    assert topk["lost_half_width"] == pytest.approx(4.302653 * 0.5 / 3**0.5)
    assert topk["sent_bytes"] == 200 + 10 and topk["dense_bytes"] == 16
    assert topk["contraction"] == pytest.approx(0.6) and topk["density_sent"] == pytest.approx(0.3)
    assert topk["step_seconds"] == pytest.approx(0.05) and topk["total_bytes"] > plain["total_bytes"]
    assert plain["lost_mean"] == 0 and plain["contraction"] is plain["cosine"] is None and plain["sent_bytes"] == 4000
    assert rows["qsgd", 1.0]["pairs"] == 1 and rows["qsgd", 1.0]["lost_half_width"] is None
    assert demo["lost_mean"] is None and demo["pairs"] == 0, "no seed in common"


def test_systems_are_parts_and_stand_beside_no_compression_and_the_memory_of_baseline(
    tmp_path: Path, capsys: Say
) -> None:
    systems_folder = save_run(tmp_path, {"parts": SYSTEMS}, observed)
    assert main(["summary", "systems", "--run", str(systems_folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in printed[3:6]] == ["No compression", "Baseline", "other"]
    values = json.loads((systems_folder / "systems.json").read_text())
    rows = {row["system"]: row for row in values["rows"]}
    assert rows["other"]["pairs"] == 2 and rows["other"]["lost_mean"] == 0.0 and rows["other"]["about"] == "other"
    assert rows["baseline"]["lost_mean"] == pytest.approx(0.5) and rows["baseline"]["held_share"] == 1.0
    assert rows["dense"]["held_share"] == rows["dense"]["total_bytes"] / rows["baseline"]["total_bytes"]


RATES = [0.003, 0.01, 0.03]
TUNE = {
    "dense": {"title": "No compression", "matrix": [DENSE | {"seed": 1}]},
    "plain": {"matrix": [MODEL | {"optimizer": "plain-sgd", "residual_dtype": "int4", "seed": 1}]},
}
TUNED = {"parts": {name: part | {"defaults": {"learning_rate": RATES}} for name, part in TUNE.items()}}
ACCURACY = {"dense": [90.0, 95.0, 91.0], "plain": [80.0, 85.0, 99.0]}


def tried(cell: Cell) -> CellResult:
    accuracy = ACCURACY["plain" if cell.optimizer else "dense"][RATES.index(cell.workload.learning_rate)]
    return replace(make_result(cell), metric=accuracy, metric_history=[[200, accuracy]])


def test_the_best_rate_of_each_part_is_measured_on_seeds_that_it_was_not_chosen_on(tmp_path: Path, capsys: Say) -> None:
    folder = save_run(tmp_path, TUNED, tried)
    assert main(["summary", "rates", "--run", str(folder)]) == 0
    assert "| 0.03 | True |" in capsys.readouterr().out
    rows = {row["system"]: row for row in json.loads((folder / "rates.json").read_text())["rows"]}
    assert (rows["dense"]["best"], rows["dense"]["border"], rows["plain"]["best"]) == (0.01, False, 0.03)
    assert rows["plain"]["tried"] == {"0.003": 80.0, "0.01": 85.0, "0.03": 99.0}
    config = read_config(folder / "rates.yaml")
    cells = expand({key: config[key] for key in ("defaults", "parts")})
    chosen = {(cell.workload.learning_rate, cell.optimizer, cell.residual_dtype) for cell in cells}
    assert chosen == {(0.01, None, None), (0.03, "plain-sgd", "int4")}
    assert sorted({cell.seed for cell in cells}) == [2, 3, 4, 5, 6] and len(cells) == 10


TELL = {key: value for key, value in read_config(Path("benchmarks/config/tell.yaml")).items() if key == "matrix"}
TELL["matrix"] = [{**entry, "seed": [0, 1, 2]} for entry in TELL["matrix"]]
TELL["matrix"].append(TELL["matrix"][1] | {"gradients": "streamed"})
KNOWN = {"metric_name": "accuracy", "higher_is_better": True}
OF_SEEDS = {  # with residuals, without
    "resnet-digits": ([90.0, 91.0, 92.0], [80.0, 81.0, 82.0]),
    "vgg-digits": ([90.0, 91.0, 92.0], [89.0, 91.0, 90.0]),
    "gpt2-bytes": ([5.0, 5.1, 5.2], [6.0, 6.1, 6.2]),
    "bert-questions": ([30.0, 31.0, 32.0], [40.0, 41.0, 42.0]),
}


def told(cell: Cell) -> CellResult:
    metric = OF_SEEDS[cell.model][cell.scheme == "none"][cell.seed] if cell.gradients == "kept" else 50.0
    return replace(make_result(cell), metric=metric)


def test_a_model_tells_if_no_residuals_are_worse_by_the_whole_interval(tmp_path: Path, capsys: Say) -> None:
    output = save_run(tmp_path, TELL, told) / "tell.json"
    assert main(["summary", "tell", "--run", str(tmp_path)]) == 0
    expected = {"resnet-digits": True, "vgg-digits": False, "gpt2-bytes": True, "bert-questions": False}
    assert load_tells(output) == expected
    records = [{"model": "x", "model_tells": tells, **KNOWN} for tells in (True, False, None)]
    assert [headings([one])["x"] for one in records] == ["x, accuracy ↑", "x *, accuracy ↑", "x, accuracy ↑"]
    entry = json.loads(output.read_text())["models"]["resnet-digits"]
    width = pytest.approx(t_quantile(0.975, 2) / 3**0.5)
    assert entry["baseline"] == {"mean": 91.0, "half_width": width, "values": [90.0, 91.0, 92.0]}
    assert entry["loss"] == {"mean": 10.0, "half_width": 0.0, "values": [10.0] * 3}
    said = capsys.readouterr()
    assert "bert-questions: does not tell: without residuals worse by -10.000 ± " in said.out
    # Steps of these records took no time: the rule counts them like any other, and says that the ledger does not.
    assert said.err.startswith("Note: ") and "It is shown, but the ledger does not count it." in said.err


HALF = {"model": "vgg-digits", "compressor": "fp16", "scheme": "none", "seed": [0, 1]}
BOTH = {"matrix": [MODEL | {"density": 0.01}, DENSE]}
REACH = {"parts": {"baseline": {"matrix": [{"model": "vgg-digits"}]}, "fp16": {"matrix": [HALF]}}}
REFUSED: list[tuple[str, Any, str, str]] = [
    ("intervals", {"matrix": MATRIX}, "*", ": not run yet; make it with: make run RUN=mini PART=table"),
    ("systems", "{", "", "config.json cannot be read (Expecting property name"),
    ("systems", '{"matrix": [{"model": "gone"}]}', "", "model: 'gone' is not known; allowed: bert"),
    ("systems", {"matrix": MATRIX}, "", "part matrix: vgg-digits has several settings; give one for each model"),
    ("systems", {"parts": {"other": BOTH}}, "", "part other: vgg-digits has several settings; give one for each model"),
    ("tell", TELL, "vgg-digits.topk.none.*s1", "lacks vgg-digits.topk.none.kept"),
    ("rates", TUNED, "*plain-sgd.lr0.003*", "lacks vgg-digits.topk.baseline.kept"),
    ("reach", {"parts": {"fp16": {"matrix": [HALF]}}}, "", "has no part 'baseline', which sets the level; add it"),
    ("reach", REACH, "*fp16*s1*", ": not run yet; make it with: make run RUN=tuned"),
]


@pytest.mark.parametrize(("kind", "config", "without", "said"), REFUSED)
def test_a_run_that_lacks_something_is_refused_in_one_line(
    tmp_path: Path, capsys: Say, kind: str, config: Any, without: str, said: str
) -> None:
    folder = save_run(tmp_path, config if isinstance(config, dict) else {"parts": SYSTEMS})
    if isinstance(config, str):
        (folder / "config.json").write_text(config)
    for path in folder.glob(f"cells/{without}.json") if without else ():
        path.unlink()
    assert main(["summary", kind, "--run", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line and not (folder / f"{kind}.json").exists()
