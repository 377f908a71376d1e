"""Time of training steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

WARMUP_STEPS = 10
"""Steps that are not counted: memory is being allocated and the launch order learnt."""


@dataclass
class StepClock:
    """Wall time of each step, of one rank."""

    step_seconds: list[float] = field(default_factory=list)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time what happens within as one step."""
        start = time.perf_counter()
        yield
        self.step_seconds.append(time.perf_counter() - start)

    @property
    def steps_per_second(self) -> float:
        """Rate of the median step after warm-up (after the first half, in a run shorter than twice the warm-up).

        The median, since what else the machine does makes some steps slow.
        """
        return 1 / median(self.step_seconds[min(WARMUP_STEPS, len(self.step_seconds) // 2) :])
