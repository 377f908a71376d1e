"""Cells that are stopped or killed while real ranks train: they go on when run again, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from benchmarks.core.stop_policy import MANIFEST, Limits, run_folder
from benchmarks.training import deadline
from benchmarks.training.build import build
from benchmarks.training.deadline import Checkpoints, Stopped, Watch
from benchmarks.training.trainer import Trainer
from resireduce.comm.base import Communicator
from tests.processes import on_processes

ROOT = Path(__file__).parents[2]
STEPS = 9
STOPS = (2, 6)
CELLS = (
    Cell(model="vgg-digits", scheme="w+2d", gradients="streamed", steps=STEPS),
    Cell(model="vgg-digits", scheme="baseline", gradients="kept", steps=STEPS),
)


def make_trainer(cell: Cell, communicator: Communicator, folder: Path, stop: int | None, how: str) -> Trainer:
    """A trainer with dropout that evaluates after every third step; its last rank is told to stop in step `stop`."""
    signals: list[int] = []
    late = [0.0]
    limits = Limits(ends_at=1e6, folder=folder, started_at=0.0)
    checkpoints = Checkpoints(folder, {}, "a cell", communicator)
    watch = Watch(limits, checkpoints=checkpoints, signals=signals, now=lambda: late[0])
    trainer = build(cell, communicator, None, Path("data"), watch=watch)
    trainer.schedule = replace(trainer.schedule, workload=replace(trainer.schedule.workload, evaluate_every=3))
    trainer.task.source.held_out = 8  # type: ignore[attr-defined]
    trainer.model.register_forward_pre_hook(lambda _, inputs: torch.nn.functional.dropout(inputs[0], 0.1))
    batch = trainer.batch

    def batch_and_stop(indices: torch.Tensor, step: int) -> Any:
        if step == stop and communicator.rank == communicator.world_size - 1:
            signals.extend([signal.SIGTERM] if how == "signal" else [])
            late[0] = 1e6 if how == "deadline" else 0.0
        return batch(indices, step)

    trainer.batch = batch_and_stop  # type: ignore[method-assign]
    return trainer


def train(cell: Cell, communicator: Communicator, folder: Path, stops: tuple[int, ...]) -> Trainer:
    """Train to the end, from a new trainer after each stop."""
    for stop, how in zip(stops, ("signal", "deadline"), strict=False):
        with pytest.raises(Stopped, match=f" at step {stop + 1} of {cell.steps}; run again to go on"):
            make_trainer(cell, communicator, folder, stop, how).train()
    trainer = make_trainer(cell, communicator, folder, None, "")
    trainer.train()
    return trainer


def check_that_stops_change_nothing(root: Path, communicator: Communicator) -> None:
    deadline.LOOK_SECONDS = 0.0  # before every step
    for number, cell in enumerate(CELLS):
        whole = train(cell, communicator, root / f"whole{number}", ())
        stopped = train(cell, communicator, root / f"stopped{number}", STOPS)
        assert stopped.watch.resumed_at == [stop + 1 for stop in STOPS]
        assert len(stopped.step_seconds) == STEPS
        assert whole.history == stopped.history and len(whole.history) == 3
        expected, found = whole.model.state_dict(), stopped.model.state_dict()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        residuals = whole.optimizer.residual_state_dict()
        assert all(torch.equal(residuals[name], it) for name, it in stopped.optimizer.residual_state_dict().items())


def test_training_that_is_stopped_twice_ends_as_one_that_is_not(tmp_path: Path) -> None:
    on_processes(2, partial(check_that_stops_change_nothing, tmp_path))


def command(spec: Path, output: Path) -> list[str]:
    options = ["--cell", str(spec), "--output", str(output), "--checkpoint-every", "0.01"]
    return [sys.executable, "-m", "benchmarks", "run", *options]


def test_a_cell_that_loses_a_rank_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    cell = Cell(model="vgg-digits", scheme="w", steps=20)
    spec, output = tmp_path / "spec.json", tmp_path / "run/cells/cell.json"
    spec.write_text(json.dumps(cell.to_dict()))
    folder = run_folder(output) / "checkpoints" / cell.name
    assert folder == tmp_path / "run/checkpoints" / cell.name
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command(spec, output), cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    limit = time.monotonic() + 120
    while not (folder / MANIFEST).exists() and first.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    ranks = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(ranks[1]), signal.SIGKILL)
    first.communicate()
    assert first.returncode == 1
    lost = CellResult.load(output.with_suffix(".failed.json"))
    assert lost.status == "error"
    step = json.loads((folder / MANIFEST).read_text())["step"]
    ended = "rank 1 was killed by SIGKILL and left no result; its log says more"
    assert lost.reason == f"{ended}; run again to go on from step {step}"
    assert lost.failure["rank"] == 1
    assert [rank["status"] for rank in lost.per_rank] == ["error", "error"]
    assert lost.steps == len(lost.step_seconds) >= step > 0
    second = subprocess.run(
        command(spec, output), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert second.returncode == 0, second.stderr
    record = CellResult.load(output)
    assert record.provenance["resumed_at_steps"] == [step]
    assert record.steps == len(record.step_seconds) == 20
    assert not folder.exists() and not output.with_suffix(".failed.json").exists()
