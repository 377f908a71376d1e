"""All that watches one rank's training: memory by the meter, phases by their clock."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from benchmarks.measure.clock import WARMUP_STEPS
from benchmarks.measure.ladder import EVALUATION, STEADY, WARMUP
from benchmarks.measure.meter import Meter
from benchmarks.measure.phases import PhaseClock
from benchmarks.measure.rungs import make_ladder
from resireduce.error_feedback import ErrorFeedback
from resireduce.memory import held_tensors
from resireduce.optimizer import DistributedOptimizer

OBSERVED_STEPS = 50
"""Steps after warm-up of which phases are timed, at most; of the others nothing is but the whole."""
OBSERVED_SHARE = 4
"""At most one in so many steps after warm-up, so that the median step is one that was not slowed by being observed."""


@dataclass
class Probe:
    """Watches training from `start` to `stop`; the steps that it counts are those of this process."""

    meter: Meter = field(default_factory=Meter)
    phases: PhaseClock = field(default_factory=PhaseClock)
    warmup_steps: int = WARMUP_STEPS
    observed_steps: int = OBSERVED_STEPS
    steps_done: int = 0

    def start(self, steps: int) -> None:
        """Begin to watch a run of so many steps; the first half of a short one is warm-up."""
        self.warmup_steps = min(WARMUP_STEPS, steps // 2)
        self.observed_steps = min(OBSERVED_STEPS, max(1, (steps - self.warmup_steps) // OBSERVED_SHARE))
        self.meter.start()

    @contextmanager
    def step(self, feedback: ErrorFeedback) -> Iterator[None]:
        """Watch one training step."""
        after_warmup = self.steps_done - self.warmup_steps
        if after_warmup == 0:
            self.meter.enter(STEADY)
        with self.phases.step(feedback) if 0 <= after_warmup < self.observed_steps else nullcontext():
            yield
        self.steps_done += 1
        self.meter.step_done()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Say which phase of a step this is; one of `phases.NAMES`."""
        return self.phases.phase(name)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Keep the memory of an evaluation apart from that of training steps."""
        self.meter.enter(EVALUATION)
        yield
        self.meter.enter(STEADY if self.steps_done > self.warmup_steps else WARMUP)

    def stop(self) -> None:
        """End all watching; call it before anything that is not training."""
        self.meter.stop()

    def at_boundary(self, optimizer: DistributedOptimizer, model: nn.Module) -> None:
        """Read what is held after a step and before `zero_grad`."""
        self.meter.at_boundary(held_tensors(optimizer), model.buffers())

    def result(self, optimizer: DistributedOptimizer) -> dict[str, Any]:
        """Drop the gradients, and return the ladder and the medians of the phases as plain values."""
        optimizer.zero_grad(set_to_none=True)
        self.meter.without_gradients()
        return make_ladder(self.meter).as_dict() | {"phase_seconds": self.phases.median_seconds()}
