"""Cells whose large tensors come in slices: what that changes of them, and of what they hold at the fullest moment."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.core.cell import Cell
from benchmarks.training.build import build
from benchmarks.training.plan_of_cell import plan_of
from resireduce.comm.local import LocalCommunicator
from resireduce.planning.memory import track_states

DOCS = Path(__file__).parents[3] / "docs"
PLAIN = {"model": "vgg-digits", "world_size": 1, "backend": "local", "gradients": "streamed", "steps": 2}


def test_a_cell_in_slices_has_a_name_of_its_own_and_updates_in_the_step() -> None:
    cells = [Cell(**PLAIN, slices=slices) for slices in (None, True, 4096)]
    assert len({cell.name for cell in cells}) == 3 and ".slices." in cells[1].name and ".slices4096." in cells[2].name
    assert [Cell.from_dict(cell.to_dict()) for cell in cells] == cells
    assert Cell(**PLAIN, compressor="none", scheme="none", slices=True).update == "in_step"


def test_the_plan_of_a_cell_is_what_its_fullest_step_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {}
    for slices in (None, True):
        cell = Cell(**PLAIN, slices=slices)
        torch.manual_seed(0)
        trainer = build(cell, LocalCommunicator(), None, Path("data"))
        batch = trainer.batch(next(trainer.indices()), 0)
        trainer.train_step(0, batch)
        trainer.optimizer.zero_grad()
        loss = trainer.loss(batch)
        with track_states(trainer.optimizer) as tracker:
            trainer.backward(loss)
            trainer.update()
        peaks[slices] = tracker.peak_bytes, plan_of(cell)["peak_states"]
    for tracked, planned in peaks.values():
        assert abs(tracked - planned) < 0.005 * planned, "indices are taken to be spread evenly"
    assert peaks[True][0] < 0.85 * peaks[None][0]
    monkeypatch.syspath_prepend(str(DOCS))
    moments = importlib.import_module("build_memory").followed(gradients="streamed", slices=True)
    assert max(map(sum, moments)) == peaks[True][0], "as the picture has it"


@pytest.mark.parametrize("model", ["vgg-digits", "resnet-digits", "gpt2-bytes", "bert-questions"])
def test_the_fullest_moment_is_within_two_points_of_what_is_held_between_steps(model: str) -> None:
    planned = plan_of(Cell(model=model, world_size=2, gradients="streamed", slices=True))
    assert planned["peak_normalised"] - planned["normalised"] < 0.02


def test_the_tables_of_the_fullest_moment_are_what_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = importlib.import_module("build_fullest")
    text, said = (DOCS / "memory.md").read_text(encoding="utf-8"), "python docs/build_fullest.py writes it anew"
    assert tables.page(text, models=()) == text, "rows that are not asked for stay as they are"
    for name, columns in tables.TABLES.items():
        block = text.partition(f"<!-- planned: {name} -->\n")[2].partition("<!-- planned: end -->")[0]
        rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in block.splitlines()}
        quick = [place for place, one in enumerate(columns) if one.precision is None and one.world_size == 2][:3]
        found = tables.row("vgg-digits", [columns[place] for place in quick])
        assert [rows[found[0]][place].strip("| ") for place in quick] == found[1:], said
    tied = tables.row("gpt2-bytes", [columns[-1]])
    assert [rows[tied[0]][-1].strip("| ")] == tied[1:], said


def test_what_stands_in_the_tables_as_a_bound_is_the_sum_of_groups_that_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two groups that are on their way together, and one after them; and a head, which is in none."""
    monkeypatch.syspath_prepend(str(DOCS))
    tables = importlib.import_module("build_fullest")

    class Pair(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.one, self.two = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    first, second = (nn.Sequential(*(Pair(width) for _ in range(3))) for width in (64, 96))
    assert tables.open_sums(nn.Sequential(first, nn.Linear(64, 96), second)) == 2 * 4 * 2 * 96 * 96
    assert tables.open_sums(nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 640))) == 0
