"""The training loop of one rank, and the observations from its first step to its last."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.core.cell import Cell
from benchmarks.core.outcome import Outcome
from benchmarks.core.progress import Progress, to_stderr
from benchmarks.core.registry import OBSERVATIONS, WATCHES
from benchmarks.core.sample_counts import steps_per_second
from benchmarks.core.workloads import Schedule
from benchmarks.training.deadline import State, Watch
from benchmarks.training.measure.probe import Probe
from benchmarks.training.measure.tracker import measure_memory
from benchmarks.training.tasks.task import Batch, Task, to_device
from resireduce.comm.base import Communicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.planning.memory import baseline_total, held_tensors, measure_states
from resireduce.scheme import load


class Diverged(ArithmeticError):
    """The loss is NaN or infinite: a result, not a failure of the program."""


@dataclass
class Trainer:
    """One rank's training run."""

    cell: Cell
    schedule: Schedule
    task: Task
    model: nn.Module
    optimizer: DistributedOptimizer
    communicator: Communicator
    step_seconds: list[float] = field(default_factory=list)
    """Wall time of each step of this rank."""
    history: list[list[float | None]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    probe: Probe = field(default_factory=Probe)
    watch: Watch = field(default_factory=Watch)
    phase: str = "preparing"
    step: int = 0
    """Counted from 1."""
    watches: dict[str, Any] = field(default_factory=dict)
    """Rank 0's observations during training, by name."""

    def train(self) -> None:
        """Take all steps of the cell, with the metric every `evaluate_every` steps and after the last."""
        steps, first = self.schedule.steps, self._begin()
        progress = Progress(to_stderr)
        self.model.train()
        self.probe.start(steps - first)
        for step, indices in islice(zip(range(steps), self.indices(), strict=False), first, None):
            self.phase = "checkpoint"
            self.watch.before_step(step, steps, self.step_seconds, self._state)
            self.phase, self.step = "data", step + 1
            for watch in self.watches.values():
                watch.begin_step(step)
            with self.probe.step(self.optimizer):
                start = time.perf_counter()
                loss = self.train_step(step, self.batch(indices, step))
                self.step_seconds.append(time.perf_counter() - start)
            if (step + 1) % self.schedule.evaluate_every == 0 or step + 1 == steps:
                self.phase = "evaluation"
                start = time.perf_counter()
                with self.probe.evaluation():
                    self.metrics = self.evaluate()
                took = time.perf_counter() - start
                self.watch.evaluation_seconds = max(self.watch.evaluation_seconds, took)
                self.history.append([step + 1, self.metrics[self.task.metric]])
            if self.communicator.rank == 0 and progress.is_due():
                to_stderr(f"{self.cell.name}: step {step + 1}/{steps}, loss {loss:.3f}, {progress.seconds:.0f} s")

    def _begin(self) -> int:
        """Restore the watch's checkpoint of an earlier run, if there is one; return the first step."""
        for name in () if self.communicator.rank else self.cell.observe:
            if name in WATCHES:
                self.watches[name] = load(WATCHES[name])(self.optimizer, self.schedule.steps)
        step, shared, own = self.watch.begin(measure_states(self.optimizer).total)
        if shared:
            self.model.load_state_dict({**shared["parameters"], **own["buffers"]})
            self.optimizer.load_state_dict(shared["optimizer"])
            self.optimizer.load_residual_state_dict(own["residuals"])
            torch.set_rng_state(own["random"]["cpu"])
            if "cuda" in own["random"]:
                torch.cuda.set_rng_state(own["random"]["cuda"], next(self.model.parameters()).device)
            self.step_seconds, self.history = own["clock"]["step_seconds"], own["history"]
        return step

    def _state(self) -> tuple[State, State]:
        """Return the state to resume from: the part that all ranks share, and this rank's own. No tensor is copied."""
        names = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        values, device = self.model.state_dict(), next(self.model.parameters()).device
        random = {"cpu": torch.get_rng_state()}  # what dropout draws from
        if device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(device)
        parameters = {name: value for name, value in values.items() if name in names}
        return {"parameters": parameters, "optimizer": self.optimizer.state_dict()}, {
            # Batch norm's running statistics differ between ranks.
            "buffers": {name: value for name, value in values.items() if name not in names},
            "residuals": self.optimizer.residual_state_dict(),
            "random": random,
            "clock": {"step_seconds": self.step_seconds},
            "history": self.history,
        }

    def train_step(self, step: int, batch: Batch) -> float:
        """Take one optimizer step, counted from 0; return its loss. Raises Diverged if that is not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate_at(step)
        self.phase = "forward"
        with self.probe.phases.phase("forward_backward"):
            self.optimizer.zero_grad()
            loss = self.task.loss(self.model, batch)
            if loss.is_cpu:
                self._refuse_divergence(loss, step)
            self.phase = "backward"
            self.backward(loss)
            value = self._refuse_divergence(loss, step)  # a GPU has all of the backward pass to do by now
        self.phase = "update"
        with self.probe.phases.phase("update"):
            self.optimizer.step()
        return value

    def _refuse_divergence(self, loss: Tensor, step: int) -> float:
        """Return the value of the loss. Raises Diverged if it is not finite."""
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss was {value} in step {step + 1} of {self.schedule.steps}")
        return value

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss."""
        loss.backward()

    def batch(self, indices: Tensor, step: int) -> Batch:
        """Return the samples with these indices, on the model's device."""
        with self.probe.phases.phase("data"):
            return to_device(self.task.batch(indices, step), self.model)

    def indices(self) -> Iterator[Tensor]:
        """Yield this rank's batches without end: all ranks share an epoch's order; its incomplete end is left out."""
        rank, world_size = self.communicator.rank, self.communicator.world_size
        generator = torch.Generator().manual_seed(self.cell.seed)
        while True:
            if "fixed-order" in self.cell.released:
                generator.manual_seed(self.cell.seed)
            order = torch.randperm(len(self.task), generator=generator)
            for whole in order.split(self.schedule.batch_per_rank * world_size)[: self.schedule.steps_per_epoch]:
                yield whole[rank::world_size]

    def evaluate(self) -> dict[str, float]:
        """Return the metrics over all ranks' shards of the held-out samples, each counted once."""
        for name, buffer in self.model.named_buffers():  # batch norm's running statistics drift apart between ranks
            if buffer.is_floating_point():
                self.communicator.all_reduce(buffer, f"buffer.{name}").wait().div_(self.communicator.world_size)
        sums = self.task.evaluate(self.model, self.communicator.rank, self.communicator.world_size)
        sums = sums.to(self.communicator.control_device)
        return self.task.metrics_from(self.communicator.all_reduce(sums, "metric").wait().cpu())

    def _measure_memory(self) -> dict[str, Any]:
        """Measure memory in one more step, whose batch is not kept afterwards."""
        batch = self.batch(next(self.indices()), self.schedule.steps)
        return measure_memory(self.optimizer, lambda: self.task.loss(self.model, batch), self.model)

    def result(self) -> Outcome:
        """Return this rank's measurements. Raises Diverged if the last step left values that are not finite."""
        self.phase = "measuring"
        self.probe.meter.stop()
        for name, parameter in self.model.named_parameters():  # no loss has shown the effect of the last step
            if not parameter.isfinite().all():
                raise Diverged(f"{name} held NaN or infinity after the last of {self.schedule.steps} steps")
        self.probe.meter.at_boundary(held_tensors(self.optimizer), self.model.buffers())
        # Before memory is measured, which takes one more step.
        observations = {name: watch.end() for name, watch in self.watches.items()}
        for name in () if self.communicator.rank else self.cell.observe:
            if name in OBSERVATIONS:
                observations[name] = load(OBSERVATIONS[name])(self.model, self.optimizer)
        memory = self._measure_memory()
        units_per_step = self.schedule.batch_per_rank * self.communicator.world_size * self.task.units_per_sample
        pace = steps_per_second(self.step_seconds)
        return Outcome(
            status="ok",
            **self.partial_result(),
            metric=self.metrics[self.task.metric],
            metrics=self.metrics,
            steps_per_second=pace,
            memory=memory | self.probe.result(self.optimizer),
            observations=observations,
            messages=[] if self.cell.merge == "none" else self.optimizer.messages,
            baseline_bytes=baseline_total(self.model, measure_states(self.optimizer)),
            unit=self.task.unit,
            units_per_second=pace * units_per_step,
            data_hash=self.task.data_hash,
            threads=torch.get_num_threads(),
        )

    def partial_result(self) -> dict[str, Any]:
        """Return the part of the result that already exists if training ends early."""
        return {
            "metric_name": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "metric_history": self.history,
            "steps": len(self.step_seconds),
            "step_seconds": self.step_seconds,
        }
