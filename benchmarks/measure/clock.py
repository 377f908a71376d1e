"""Time of training steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
        """Mean rate after warm-up (after the first half, in a run that is shorter than twice the warm-up)."""
        steady = self.step_seconds[min(WARMUP_STEPS, len(self.step_seconds) // 2) :]
        return len(steady) / sum(steady)
