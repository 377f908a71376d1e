"""Phases of a step: they add up, and watching changes no result."""

from pathlib import Path

import pytest
import torch

from benchmarks.core.cell import Cell
from benchmarks.training.build import build
from benchmarks.training.measure.phases import NAMES
from benchmarks.training.trainer import Trainer
from resireduce.comm.local import LocalCommunicator
from tests.worlds import same


def trained(monkeypatch: pytest.MonkeyPatch, gradients: str, observed: int) -> Trainer:
    monkeypatch.setattr("benchmarks.training.measure.probe.OBSERVED_STEPS", observed)
    monkeypatch.setattr("benchmarks.training.trainer.Trainer.evaluate", lambda trainer: {trainer.task.metric: 0.5})
    size = {"world_size": 1, "steps": 2, "batch_per_rank": 4}
    cell = Cell(model="vgg-digits", scheme="w+2d", gradients=gradients, backend="local", **size)
    trainer = build(cell, LocalCommunicator(), None, Path("data"))
    trainer.train()
    return trainer


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_phases_of_a_cell_add_up_and_watching_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, own_settings: None, gradients: str
) -> None:
    torch.set_num_threads(1)
    watched, unwatched = (trained(monkeypatch, gradients, observed) for observed in (50, 0))
    assert same(watched.model, unwatched.model)
    assert unwatched.probe.phases.median_seconds() == {}
    steps = watched.probe.phases.seconds()
    assert len(steps) == 1, "half of a short run is warm-up"
    for step, whole in zip(steps, watched.clock.step_seconds[1:], strict=True):
        assert sum(step[name] for name in NAMES) == pytest.approx(step["step"], rel=1e-6)
        assert step["step"] >= whole, "the clock of whole steps runs within"
        assert all(step[name] > 0 for name in NAMES)
    assert "compress" not in vars(watched.optimizer.feedback)
