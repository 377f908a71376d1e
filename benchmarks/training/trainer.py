"""The training loop of one rank."""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.measure.clock import StepClock
from benchmarks.measure.memory import RankBytes, measure_memory
from benchmarks.measure.probe import Probe
from benchmarks.observe import OBSERVATIONS
from benchmarks.tasks.base import Batch, Task, to_device
from benchmarks.training.deadline import Watch
from benchmarks.training.failures import Diverged
from benchmarks.workloads import Schedule
from resireduce.comm.base import Communicator
from resireduce.memory import baseline_total, measure_states
from resireduce.optimizer import DistributedOptimizer
from resireduce.scheme import load

PROGRESS_SECONDS = 5.0


@dataclass
class Trainer:
    """One rank's training run."""

    cell: Cell
    schedule: Schedule
    task: Task
    model: nn.Module
    optimizer: DistributedOptimizer
    communicator: Communicator
    clock: StepClock = field(default_factory=StepClock)
    history: list[list[float]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    probe: Probe = field(default_factory=Probe)
    watch: Watch = field(default_factory=Watch)
    """When to save and to stop."""
    phase: str = "preparing"
    """What is being done, and in which step, for the record of a rank that fails."""
    step: int = 0
    """Counted from 1."""

    def train(self) -> None:
        """All steps of the cell, with the metric every `evaluate_every` steps and after the last."""
        steps = self.schedule.steps
        first = self.watch.begin(self)
        started = reported = time.monotonic()
        self.model.train()
        self.probe.start(steps - first)
        for step, indices in islice(zip(range(steps), self.indices(), strict=False), first, None):
            self.watch.before_step(self, step)
            self.step = step + 1
            with self.probe.step(self.optimizer.feedback), self.clock.step():
                loss = self.train_step(step, self.batch(indices, step))
            if (step + 1) % self.schedule.evaluate_every == 0 or step + 1 == steps:
                self.phase = "evaluation"
                with self.probe.evaluation(), self.watch.evaluating():
                    self.metrics = self.evaluate()
                self.history.append([step + 1, self.metrics[self.task.metric]])
            if self.communicator.rank == 0 and time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                line = f"{self.cell.name}: step {step + 1}/{steps}, loss {loss:.3f}, {reported - started:.0f} s"
                print(line, file=sys.stderr, flush=True)

    def train_step(self, step: int, batch: Batch) -> float:
        """Take one optimizer step, counted from 0; return its loss. Raises Diverged if that is not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate_at(step)
        self.phase = "forward"
        with self.probe.phase("forward_backward"):
            self.optimizer.zero_grad()
            loss = self.task.loss(self.model, batch)
            value = loss.item()
            if not math.isfinite(value):
                raise Diverged(f"the loss was {value} in step {step + 1} of {self.schedule.steps}")
            self.phase = "backward"
            loss.backward()
        self.phase = "update"
        with self.probe.phase("update"):
            self.optimizer.step()
        return value

    def batch(self, indices: Tensor, step: int) -> Batch:
        """The samples with these indices, on the model's device."""
        with self.probe.phase("data"):
            return to_device(self.task.batch(indices, step), self.model)

    def indices(self) -> Iterator[Tensor]:
        """This rank's batches without end: all ranks share an epoch's order; its incomplete end is left out."""
        rank, world_size = self.communicator.rank, self.communicator.world_size
        generator = torch.Generator().manual_seed(self.cell.seed)
        while True:
            if "fixed-order" in self.cell.released:
                generator.manual_seed(self.cell.seed)
            order = torch.randperm(len(self.task), generator=generator)
            for whole in order.split(self.schedule.batch_per_rank * world_size)[: self.schedule.steps_per_epoch]:
                yield whole[rank::world_size]

    def evaluate(self) -> dict[str, float]:
        """The metrics over all ranks' shards of the held-out samples, each counted once."""
        self._average_buffers()
        sums = self.task.evaluate(self.model, self.communicator.rank, self.communicator.world_size)
        sums = sums.to(self.communicator.control_device)
        return self.task.metrics_from(self.communicator.all_reduce(sums, "metric").wait().cpu())

    def _average_buffers(self) -> None:
        """Batch norm's running statistics drift apart between ranks."""
        for name, buffer in self.model.named_buffers():
            if buffer.is_floating_point():
                self.communicator.all_reduce(buffer, f"buffer.{name}").wait().div_(self.communicator.world_size)

    def _units_per_step(self) -> int:
        """Images or tokens of all ranks."""
        return self.schedule.batch_per_rank * self.communicator.world_size * self.task.units_per_sample

    def _measure_memory(self) -> RankBytes:
        """One more step, whose batch is not held any longer afterwards."""
        batch = self.batch(next(self.indices()), self.schedule.steps)
        return measure_memory(self.optimizer, lambda: self.task.loss(self.model, batch), self.model)

    def result(self) -> dict[str, Any]:
        """What this rank measured, by the names of CellResult, and what of it is for the screen only."""
        self.phase = "measuring"
        self.probe.stop()
        self._check_parameters()
        self.probe.at_boundary(self.optimizer, self.model)
        observations = self._observe()  # before memory is measured, which takes one more step
        memory = self._measure_memory()
        baseline_bytes = baseline_total(self.model, measure_states(self.optimizer))
        return {
            "metric_name": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "metric": self.metrics[self.task.metric],
            "metrics": self.metrics,
            "metric_history": self.history,
            "steps": len(self.clock.step_seconds),
            "steps_per_second": self.clock.steps_per_second,
            "step_seconds": self.clock.step_seconds,
            "memory": memory.as_dict() | self.probe.result(self.optimizer),
            "observations": observations,
            "baseline_bytes": baseline_bytes,
            "unit": self.task.unit,
            "units_per_second": self.clock.steps_per_second * self._units_per_step(),
            "data_hash": self.task.data_hash(),
            "threads": torch.get_num_threads(),
        }

    def _check_parameters(self) -> None:
        """No loss has shown what the last step did."""
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise Diverged(f"{name} held NaN or infinity after the last of {self.schedule.steps} steps")

    def _observe(self) -> dict[str, Any]:
        """What the cell asks for beside the usual, of rank 0."""
        if self.communicator.rank:
            return {}
        return {name: load(OBSERVATIONS[name])(self.model, self.optimizer) for name in self.cell.observe}

    def partial_result(self) -> dict[str, Any]:
        """What of the result there is already, when training ends before its time."""
        return {
            "metric_name": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "metric_history": self.history,
            "steps": len(self.clock.step_seconds),
            "step_seconds": self.clock.step_seconds,
        }
