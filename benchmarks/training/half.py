"""Trains a small model to its metric in float32, bfloat16 and float16, on one device.

`python -m benchmarks.training.half --model NAME --output FILE`: under autocast, with a GradScaler for float16, streamed
and with the shared residuals of w+2d; parameters and residuals are float32 throughout.
"""

import argparse
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import resireduce
from benchmarks.core.cell import Cell
from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.core.files import finite, save_json
from benchmarks.core.prepared import find_root
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.build import build
from benchmarks.training.place import choose_place, settle_arithmetic
from benchmarks.training.pretrain import pretrain
from benchmarks.training.tasks.task import Batch
from benchmarks.training.trainer import Trainer
from resireduce.comm.local import LocalCommunicator

DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class HalfTrainer(Trainer):
    """Computes the loss under autocast; float16 needs it scaled."""

    dtype: torch.dtype = torch.float32
    scaler: resireduce.GradScaler | None = None
    overflows: int = 0
    """Steps that were skipped, because a gradient overflowed."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch, computed in `dtype`."""
        if self.dtype == torch.float32:
            return super().loss(batch)
        with torch.autocast(next(self.model.parameters()).device.type, self.dtype):
            return super().loss(batch)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, scaled if there is a scaler."""
        super().backward(loss if self.scaler is None else self.scaler.scale(loss))

    def update(self) -> None:
        """Update the parameters, or count an overflow; the scaler chooses the scale of the next step."""
        if self.scaler is None:
            super().update()
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.overflows += self.optimizer.overflowed


def trained(cell: Cell, dtype: str, weights: Path | None, device: torch.device) -> dict[str, Any]:
    """Train a cell on one rank, from the `weights` file if given; return its metric, loss and skipped steps."""
    scaler = resireduce.GradScaler(device.type) if dtype == "float16" else None
    usual = build(cell, LocalCommunicator(), weights, find_root(), device, scaler)
    trainer = HalfTrainer(**vars(usual), dtype=getattr(torch, dtype), scaler=scaler)
    trainer.train()
    trainer.optimizer.close()
    name = trainer.task.metric
    found = {"dtype": dtype, "metric_name": name, "metric": trainer.metrics[name]}
    return found | {"overflows": trainer.overflows, "steps_per_second": trainer.clock.steps_per_second}


def main() -> None:
    """Write the metrics of all precisions to the file."""
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
    torch.set_num_threads(cell.threads)
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
