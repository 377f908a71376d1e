"""What a config will cost: arithmetic from records, and nothing where there are none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.budget import Speed, estimate, read
from benchmarks.core.cell import Cell
from benchmarks.core.sample_counts import COUNTS, planned_steps
from benchmarks.core.workloads import WORKLOADS
from tests.records import make_result

SMALL = Cell(model="gpt2-bytes", scheme="w+2d")


def speed(cell: Cell, threads: int | None = None, wall_seconds: float = 70.0) -> Speed:
    return Speed(cell, "H100", threads, 100, 2.0, wall_seconds)


def test_steps_are_those_of_the_published_data() -> None:
    assert planned_steps(Cell(model="resnet50", world_size=8)) == (80 * (50_000 // 256), "")
    assert planned_steps(Cell(model="resnet50", world_size=8, batch_per_rank=64))[0] == 80 * (50_000 // 512)
    steps, more = planned_steps(Cell(model="bert-base", world_size=8))
    assert steps == 4 * (87_599 // 32) and "several samples" in more
    assert planned_steps(Cell(model="gpt2-medium", world_size=8))[0] == 2 * (103_227_021 // 1024 // 16)
    shorter = Cell(model="gpt2-medium", world_size=8, length=512, released=["wikitext-2"])
    assert planned_steps(shorter)[0] == 2 * (2_088_628 // 512 // 16)
    assert planned_steps(Cell(model="gpt2-bytes")) == (200, "")
    assert planned_steps(Cell(model="vgg19", steps=20, data="synthetic")) == (20, "")
    assert planned_steps(Cell(model="vgg19", data="synthetic"))[0] is None
    assert planned_steps(Cell(model="vgg19", batch_per_rank=50_000))[0] is None
    named = {workload.data for workload in WORKLOADS.values() if workload.data}
    assert named <= COUNTS.keys()


def test_a_cell_takes_what_its_own_setting_took() -> None:
    recorded = [speed(SMALL), speed(replace(SMALL, seed=1), wall_seconds=90.0), speed(Cell(model="vgg-digits"))]
    found = estimate(replace(SMALL, seed=7, steps=1000), recorded)
    # 1000 steps of half a second, and what was not steps: 20 and 40 s.
    assert found.hours == pytest.approx((500 + 30) / 3600) and found.basis == "measured"
    assert found.processor_hours == pytest.approx(2 * (500 + 30) / 3600), "two ranks, two GPUs"


def test_what_is_scaled_and_what_is_not_known_is_said() -> None:
    one = Cell(model="bert-base", world_size=1, backend="local", steps=20, data="synthetic")
    eight = estimate(Cell(model="bert-base", world_size=8), [speed(one)])
    assert eight.hours == pytest.approx((10_948 / 2 + 20) / 3600)
    assert eight.basis.startswith("at least: without communication, on synthetic inputs; at least: more steps")
    assert estimate(replace(one, scheme="w"), [speed(one)]).basis.startswith("measured with other schemes")
    for unknown in (Cell(model="bert-large"), replace(one, length=128), Cell(model="vgg19", data="synthetic")):
        found = estimate(unknown, [speed(one)])
        assert found.hours is None and "not known" in found.basis
    assert estimate(Cell(model="bert-base", world_size=8), [speed(one, threads=1)]).hours is None, (
        "ranks share the cores"
    )


def test_the_budget_of_a_config_is_that_of_records_and_what_is_not_known_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three records on a CPU of 12.5 s each, with 21.5 steps a second of 200."""
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        result = make_result(replace(SMALL, seed=seed))
        path = Path(f"results/runs/x/cells/{result.cell.name}.json")
        replace(result, provenance=result.provenance | {"cores": 8}).save(path)
    (path.parent / "broken.json").write_text("{")
    assert read(path.parent / "broken.json") == []
    matrix = {"matrix": [{"model": ["gpt2-bytes", "vgg-digits"], "scheme": ["w+2d", "w"], "seed": [0, 1]}]}
    Path("c.yaml").write_text(json.dumps({"parts": {"one": matrix, "two": matrix}}))
    assert main(["cells", "--budget", "--config", "c.yaml"]) == 0
    text = capsys.readouterr().out
    (row,) = [line.split() for line in text.splitlines() if " gpt2-bytes " in line]
    assert row[:4] == ["one", "gpt2-bytes", "2", "4"], "what two parts have is counted once"
    assert row[4:6] == [f"{4 * 12.5 / 3600:.2g}", f"{8 * 12.5 / 3600:.2g}"], "as recorded, of as many steps"
    assert "8 cells; hours of 4 are not known." in text and "On: Example CPU @ 2.00GHz, 8 cores." in text
    assert main(["cells", "--budget", "--config", "c.yaml", "--device", "H100"]) == 2
    assert "device: 'H100' has no records; there are some of: Example CPU" in capsys.readouterr().err
