"""One rank of one cell: build, train, evaluate, measure. `python -m benchmarks.train` is what `launch` starts."""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import resireduce
from benchmarks.cell import Cell
from benchmarks.files import load_json, save_json
from benchmarks.measure.clock import StepClock
from benchmarks.measure.memory import measure_memory
from benchmarks.models import MODELS
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import Batch, Task
from benchmarks.workloads import WORKLOADS, Workload
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import NonFiniteGradient
from resireduce.memory import baseline_total, measure_states
from resireduce.optimizer import DistributedOptimizer
from resireduce.scheme import COMPRESSORS, load

PROGRESS_SECONDS = 5.0


class Diverged(ArithmeticError):
    """The loss is NaN or infinite: a result, not a failure of the program."""


@dataclass
class Trainer:
    """One rank's training run."""

    cell: Cell
    workload: Workload
    task: Task
    model: nn.Module
    optimizer: DistributedOptimizer
    communicator: Communicator
    clock: StepClock = field(default_factory=StepClock)
    history: list[list[float]] = field(default_factory=list)

    def train(self) -> None:
        """All steps of the cell, with the metric every `evaluate_every` steps and after the last."""
        steps = self.cell.steps or self.workload.steps
        started = reported = time.monotonic()
        self.model.train()
        for step, batch in zip(range(steps), self.batches(), strict=False):
            with self.clock.step():
                loss = self._step(step, steps, batch)
            if (step + 1) % self.workload.evaluate_every == 0 or step + 1 == steps:
                self.history.append([step + 1, self.evaluate()])
            if self.communicator.rank == 0 and time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                line = f"{self.cell.name}: step {step + 1}/{steps}, loss {loss:.3f}, {reported - started:.0f} s"
                print(line, file=sys.stderr, flush=True)

    def _step(self, step: int, steps: int, batch: Batch) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.workload.learning_rate_at(step, steps)
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, batch)
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss was {value} in step {step + 1} of {steps}")
        loss.backward()
        self.optimizer.step()
        return value

    def batches(self) -> Iterator[Batch]:
        """This rank's batches without end: all ranks share an epoch's order; its incomplete end is left out."""
        size, world_size = self.workload.batch_per_rank, self.communicator.world_size
        if len(self.task) < size * world_size:
            raise ValueError(f"{len(self.task)} samples are less than one batch of {world_size} ranks x {size}")
        generator = torch.Generator().manual_seed(self.cell.seed)
        while True:
            order = torch.randperm(len(self.task), generator=generator)
            for whole in order.split(size * world_size)[: len(order) // (size * world_size)]:
                yield self.task.batch(whole[self.communicator.rank :: world_size])

    def evaluate(self) -> float:
        """The metric over all ranks' shards of the held-out samples, each counted once."""
        self._average_buffers()
        sums = self.task.evaluate(self.model, self.communicator.rank, self.communicator.world_size)
        return self.task.metric_from(self.communicator.all_reduce(sums, "metric").wait())

    def _average_buffers(self) -> None:
        """Batch norm's running statistics drift apart between ranks."""
        for name, buffer in self.model.named_buffers():
            if buffer.is_floating_point():
                self.communicator.all_reduce(buffer, f"buffer.{name}").wait().div_(self.communicator.world_size)

    def result(self) -> dict[str, Any]:
        """What this rank measured, by the names of CellResult, and what of it is for the screen only."""
        batch = next(self.batches())
        memory = measure_memory(self.optimizer, lambda: self.task.loss(self.model, batch))
        return {
            "metric_name": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "metric": self.history[-1][1],
            "metric_history": self.history,
            "steps": len(self.clock.step_seconds),
            "steps_per_second": self.clock.steps_per_second,
            "step_seconds": self.clock.step_seconds,
            "memory": memory.as_dict(),
            "baseline_bytes": baseline_total(self.model, measure_states(self.optimizer)),
            "data_hash": self.task.data_hash(),
            "threads": torch.get_num_threads(),
        }


def build(cell: Cell, communicator: Communicator, weights: Path | None) -> Trainer:
    """Everything that a rank trains with, the same on every rank but for its share of the data."""
    workload = WORKLOADS[cell.model]
    torch.manual_seed(cell.seed)
    model: nn.Module = load(MODELS[workload.model])()
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    optimizer = resireduce.distribute(
        model,
        make_optimizer(workload, list(model.parameters()), COMPRESSORS[cell.compressor].corrects_momentum),
        scheme=cell.scheme,
        compressor=cell.compressor,
        density=cell.density,
        backend=communicator,
        gradients=cell.gradients,
        residual_dtype=cell.residual_dtype,
    )
    return Trainer(cell, workload, load(TASKS[workload.task])("train"), model, optimizer, communicator)


def make_optimizer(
    workload: Workload, parameters: list[nn.Parameter], corrects_momentum: bool = False
) -> torch.optim.Optimizer:
    """The workload's optimizer, before it is distributed; without momentum if the compressor takes care of it."""
    rate, decay = workload.learning_rate, workload.weight_decay
    if workload.optimizer == "sgd":
        momentum = 0.0 if corrects_momentum else workload.momentum
        return torch.optim.SGD(parameters, rate, momentum=momentum, weight_decay=decay)
    return torch.optim.AdamW(parameters, rate, weight_decay=decay)


def run_rank(cell: Cell, communicator: Communicator, weights: Path | None) -> dict[str, Any]:
    """Train and measure; divergence and lack of memory are results too."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // cell.world_size))
    torch.use_deterministic_algorithms(True)
    try:
        trainer = build(cell, communicator, weights)
        trainer.train()
        return {"status": "ok", "reason": None, **trainer.result()}
    except (Diverged, NonFiniteGradient) as error:
        return {"status": "diverged", "reason": str(error)}
    except (torch.OutOfMemoryError, MemoryError) as error:
        return {"status": "oom", "reason": str(error).splitlines()[0] if str(error) else "out of memory"}


def connect(cell: Cell, rendezvous: Path) -> Communicator:
    """Join the other ranks; the environment says which rank this is."""
    if cell.backend == "local":
        return LocalCommunicator()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    return TorchCommunicator()


def main() -> None:
    """One rank: reads the cell, leaves its outcome in `--output`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    args = parser.parse_args()
    cell = Cell.from_dict(load_json(args.cell))
    communicator = connect(cell, args.rendezvous.resolve())
    outcome = run_rank(cell, communicator, args.weights)
    save_json(outcome, args.output)
    if cell.backend == "torch" and outcome["status"] == "ok":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
