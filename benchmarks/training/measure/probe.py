"""Observes one rank's training: memory by the meter, phases by their clock, and GPUs before CUDA begins."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.core.devices import DEVICE_VARIABLE, Idle, Nvml, NvmlUnavailable, wanted_device
from benchmarks.core.rank_memory import EVALUATION, STEADY, WARMUP
from benchmarks.core.sample_counts import WARMUP_STEPS
from benchmarks.training.measure.meter import NO_CUDA, Meter
from benchmarks.training.measure.phases import PhaseClock
from benchmarks.training.measure.rank_facts import gpu_uuid
from benchmarks.training.place import Place
from resireduce.core.optimizer import DistributedOptimizer

OBSERVED_STEPS = 50
"""Most steps after warm-up whose phases are timed; the others are only timed as a whole."""
OBSERVED_SHARE = 4
"""At most one in this many steps after warm-up, so that the median step is not slowed by being observed."""


@dataclass
class Probe:
    """Observes training from `start` to the meter's `stop`; it counts only the steps of this process."""

    meter: Meter = field(default_factory=Meter)
    phases: PhaseClock = field(default_factory=PhaseClock)
    warmup_steps: int = WARMUP_STEPS
    observed_steps: int = OBSERVED_STEPS
    steps_done: int = 0

    def start(self, steps: int) -> None:
        """Begin to observe a run of `steps` steps; the first half of a short one is warm-up."""
        self.warmup_steps = min(WARMUP_STEPS, steps // 2)
        self.observed_steps = min(OBSERVED_STEPS, max(1, (steps - self.warmup_steps) // OBSERVED_SHARE))
        self.meter.start()

    @contextmanager
    def step(self, optimizer: DistributedOptimizer) -> Iterator[None]:
        """Observe one training step."""
        after_warmup = self.steps_done - self.warmup_steps
        if after_warmup == 0:
            self.meter.enter(STEADY)
        with self.phases.step(optimizer) if 0 <= after_warmup < self.observed_steps else nullcontext():
            yield
        self.steps_done += 1
        self.meter.step_done()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Keep the memory of an evaluation apart from that of training steps."""
        self.meter.enter(EVALUATION)
        yield
        self.meter.enter(STEADY if self.steps_done > self.warmup_steps else WARMUP)

    def result(self, optimizer: DistributedOptimizer) -> dict[str, Any]:
        """Drop the gradients, and return the ladder and the medians of the phases as plain values."""
        optimizer.zero_grad(set_to_none=True)
        self.meter.without_gradients()
        return self.meter.ladder() | {"phase_seconds": self.phases.median_seconds()}


@dataclass(frozen=True)
class Before:
    """All GPUs as they were before this process used any; only CUDA knows which of them it will use."""

    nvml: Nvml | None = None
    reason: str = NO_CUDA
    """Why NVML cannot be used, if so."""
    idle: dict[str, Idle] = field(default_factory=dict)
    """State of each GPU, by UUID."""

    @property
    def driver(self) -> str | None:
        """The driver's version."""
        return None if self.nvml is None else self.nvml.driver_version()


def look_before_cuda(place: Place) -> Before:
    """Look at all GPUs, if this rank will train on one. Call it before joining the group of ranks.

    Joining waits for all ranks, so no rank sees memory that another has already begun to use.
    """
    if place.device.type != "cuda":
        return Before(reason=f"trained on the CPU ({DEVICE_VARIABLE}=cpu)" if wanted_device() == "cpu" else NO_CUDA)
    try:
        nvml = Nvml.load()
        return Before(nvml, idle=nvml.idle())
    except NvmlUnavailable as error:
        return Before(reason=str(error))


def make_meter(place: Place, before: Before) -> Meter:
    """Make the meter of this rank. On a GPU, CUDA begins here at the latest; make the model afterwards."""
    device = place.device
    torch.zeros(1, device=device)  # makes the context before anything is measured
    if before.nvml is None:
        return Meter(device, before.reason, None, place.ranks_on_device)
    try:
        found = before.nvml.device(str(gpu_uuid(device)), device.index or 0, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except NvmlUnavailable as error:
        return Meter(device, str(error), None, place.ranks_on_device)
    return Meter(device, found, before.idle.get(found.uuid), place.ranks_on_device)


def make_probe(place: Place, before: Before) -> Probe:
    """Make the probe of this rank."""
    return Probe(make_meter(place, before), PhaseClock(place.device))
