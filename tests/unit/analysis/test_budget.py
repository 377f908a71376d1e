"""What a config will cost: arithmetic from records, and nothing where there are none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.budget import Recorded, Speed, estimate, read_speeds
from benchmarks.core.cell import Cell
from benchmarks.core.sample_counts import COUNTS, planned_steps
from benchmarks.core.workloads import WORKLOADS
from tests.records import make_result

SMALL = Cell(model="gpt2-bytes", scheme="w+2d")


def speed(cell: Cell, **changes: Any) -> Speed:
    values = {"device": "H100", "on_gpu": True, "threads": 1, "steps": 100, "steps_per_second": 2.0}
    return Speed(cell=cell, **(values | {"wall_seconds": 70.0, "source": "here"} | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four records on a CPU of 12.5 s each, with 21.5 steps a second of 200 (20 with scheme baseline)."""
    for seed in range(3):
        cell = replace(SMALL, seed=seed)
        save(cell, tmp_path)
    save(Cell(model="gpt2-bytes"), tmp_path)
    (tmp_path / "x/specs").mkdir()
    (tmp_path / "x/specs/a.json").write_text(json.dumps(SMALL.to_dict()))
    (tmp_path / "x/config.json").write_text("{}")
    (tmp_path / "x/cells/broken.json").write_text("{")
    return tmp_path / "x"


def save(cell: Cell, folder: Path) -> None:
    result = make_result(cell)
    replace(result, provenance=result.provenance | {"cores": 8}).save(folder / f"x/cells/{cell.name}.json")


def budget(tmp_path: Path, matrix: list[dict[str, Any]], *options: str) -> int:
    (tmp_path / "c.yaml").write_text(json.dumps({"parts": {"one": {"matrix": matrix}, "two": {"matrix": matrix}}}))
    return main(["cells", "--budget", "--config", str(tmp_path / "c.yaml"), *options])


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
    recorded = Recorded(
        [speed(SMALL), speed(replace(SMALL, seed=1), wall_seconds=90.0), speed(Cell(model="vgg-digits"))]
    )
    found = estimate(replace(SMALL, seed=7, steps=1000), recorded)
    # 1000 steps of half a second, and what was not steps: 20 and 40 s.
    assert found.hours == pytest.approx((500 + 30) / 3600)
    assert found.processor_hours == pytest.approx(2 * (500 + 30) / 3600), "two ranks, two GPUs"
    assert (found.basis, found.at_least) == ("measured", False)


def test_what_is_scaled_and_what_is_not_known_is_said() -> None:
    one = Cell(model="bert-base", world_size=1, backend="local", steps=20, data="synthetic")
    recorded = Recorded([speed(one)])
    eight = estimate(Cell(model="bert-base", world_size=8), recorded)
    assert eight.hours == pytest.approx((10_948 / 2 + 20) / 3600)
    assert "scaled from 1 rank" in eight.basis and "on synthetic inputs" in eight.basis and "more steps" in eight.basis
    assert eight.at_least
    other = estimate(replace(one, scheme="w"), recorded)
    assert other.basis.startswith("measured with other schemes") and not other.at_least
    for unknown in (
        Cell(model="bert-large"),
        replace(one, batch_per_rank=8),
        replace(one, length=128),
        Cell(model="vgg19", data="synthetic"),
    ):
        assert estimate(unknown, recorded).hours is None and "not known" in estimate(unknown, recorded).basis
    on_cpu = Recorded([speed(one, on_gpu=False)])
    assert estimate(Cell(model="bert-base", world_size=8), on_cpu).hours is None, "ranks share the cores"


def test_the_budget_of_a_config_and_what_it_does_not_know(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = [{"model": "gpt2-bytes", "scheme": ["w+2d", "w"], "seed": [0, 1]}]
    records = ("--records", str(folder))
    assert {one.device for one in read_speeds([folder])} == {"Example CPU @ 2.00GHz, 8 cores"}
    assert budget(tmp_path, matrix, *records, "--jobs", "2") == 0
    text = capsys.readouterr().out
    (row,) = [line.split() for line in text.splitlines() if " gpt2-bytes " in line]
    assert row[:5] == ["one", "gpt2-bytes", "2", "4", "200"], "what two parts have is counted once"
    assert row[5] == f"{4 * 12.5 / 3600:.2g}", "as recorded, of as many steps"
    assert "4 cells; hours of 0 are not known." in text and "Core hours: 0.028." in text
    assert "Wall time, 2 cells at once: 0.0069 hours." in text and "at least" not in text
    assert budget(tmp_path, [{"model": ["gpt2-bytes", "vgg-digits"]}], *records, "--part", "two") == 0
    text = capsys.readouterr().out
    assert "hours of 1 are not known" in text and "Core hours: at least" in text
    assert budget(tmp_path, matrix, "--records", "gone") == 2
    assert "records: gone is not there; give folders" in capsys.readouterr().err
