"""Trains a small model to its metric in float32, bfloat16 and float16, on one device.

`python -m benchmarks.training.half --model NAME --output FILE`: under autocast, with a GradScaler for float16, streamed
and with the shared residuals of w+2d; parameters and residuals are float32 throughout.
"""

import argparse
import os
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import resireduce
from benchmarks.cell import Cell
from benchmarks.data.prepared import find_root
from benchmarks.files import finite, save_json
from benchmarks.pretrain import pretrain
from benchmarks.tasks.base import Batch
from benchmarks.training.build import make_model, make_task, rank_seed
from benchmarks.training.devices import DEVICE_VARIABLE, choose_place, settle_arithmetic
from benchmarks.training.optimizers import make_optimizer
from benchmarks.training.trainer import Trainer
from benchmarks.workloads import WORKLOADS, Schedule
from resireduce.comm.local import LocalCommunicator

DTYPES = ("float32", "bfloat16", "float16")


class HalfTrainer(Trainer):
    """Computes the loss under autocast; float16 needs it scaled."""

    dtype: torch.dtype = torch.float32
    scaler: resireduce.GradScaler | None = None
    overflows: int = 0
    """Steps that were skipped, because a gradient overflowed."""

    def _autocast(self) -> AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, self.dtype)

    def train_step(self, step: int, batch: Batch) -> float:
        """Take one optimizer step, counted from 0; return its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate_at(step)
        self.optimizer.zero_grad()
        with self._autocast():
            loss: Tensor = self.task.loss(self.model, batch)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.overflows += self.optimizer.overflowed
        return loss.item()


def trained(cell: Cell, dtype: str, weights: Path | None, device: torch.device) -> dict[str, Any]:
    """Train a cell on one rank, from the weights in a file if there are any: its metric, loss and skipped steps."""
    workload, communicator, root = WORKLOADS[cell.model], LocalCommunicator(), find_root()
    task = make_task(cell, root)
    schedule = Schedule(workload, samples=len(task), world_size=1, steps_wanted=cell.steps)
    model = make_model(cell, weights, root).to(device)
    scaler = resireduce.GradScaler(device.type) if dtype == "float16" else None
    optimizer = resireduce.distribute(
        model, make_optimizer(workload, model), scheme=cell.scheme, compressor=cell.compressor, density=cell.density,
        backend=communicator, gradients=cell.gradients, grad_scaler=scaler,
    )  # fmt: skip
    torch.manual_seed(rank_seed(cell.seed, 0))
    trainer = HalfTrainer(cell, schedule, task, model, optimizer, communicator)
    trainer.dtype, trainer.scaler = getattr(torch, dtype), scaler
    trainer.train()
    optimizer.close()
    found = {"dtype": dtype, "metric_name": task.metric, "metric": trainer.metrics[task.metric]}
    return found | {"overflows": trainer.overflows, "steps_per_second": trainer.clock.steps_per_second}


def main() -> None:
    """Leave the metrics of all precisions in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, help="fewer than the recipe's")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    os.environ[DEVICE_VARIABLE] = args.device
    device, workload = choose_place().device, WORKLOADS[args.model]
    settle_arithmetic(device)
    cell = Cell(model=args.model, scheme="w+2d", gradients="streamed", world_size=1, backend="local", steps=args.steps)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="resireduce-half-") as folder:
        weights = None
        if workload.pretrain_steps:
            weights = Path(folder) / "weights.pt"
            torch.save(
                pretrain(replace(workload, pretrain_steps=args.steps or workload.pretrain_steps), print), weights
            )
        for dtype in DTYPES:
            rows.append(trained(cell, dtype, weights, device))
            print(rows[-1], flush=True)
            save_json(finite({"cell": cell.to_dict(), "rows": rows}), args.output)


if __name__ == "__main__":
    main()
