"""The length of a cell's training, and the learning rate at each step."""

import math
from bisect import bisect_right
from dataclasses import dataclass

from benchmarks.core.workloads.recipe import Workload
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """The recipe `workload` for `samples` training samples on `world_size` ranks.

    Args:
        steps_wanted: optimizer steps to take instead of the recipe's.
        batch_wanted: samples of one rank in a step, instead of the recipe's.
        plans_single_rank: whether warm-up and decay use the number of steps of a single rank, as released for BERT.

    Raises ConfigError if there are fewer samples than one batch of all ranks.
    """

    workload: Workload
    samples: int
    world_size: int
    steps_wanted: int | None = None
    batch_wanted: int | None = None
    plans_single_rank: bool = False

    def __post_init__(self) -> None:
        if not self.steps_per_epoch:
            raise ConfigError(
                f"batch_per_rank: {self.batch_per_rank} x {self.world_size} ranks is more than the "
                f"{self.samples} samples of an epoch; give a smaller one, or fewer ranks"
            )

    @property
    def batch_per_rank(self) -> int:
        """Samples of one rank in a step."""
        return self.batch_wanted or self.workload.batch_per_rank

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of all ranks in one pass through the samples; the remainder is left out."""
        return self.samples // (self.batch_per_rank * self.world_size)

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return self.steps_wanted or self.workload.steps or (self.workload.epochs or 0) * self.steps_per_epoch

    @property
    def evaluate_every(self) -> int:
        """Steps between two measurements of the metric."""
        return self.workload.evaluate_every or self.steps_per_epoch

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate rises."""
        w = self.workload
        return w.warmup_steps or w.warmup_epochs * self.steps_per_epoch or int(w.warmup_share * self._planned)

    @property
    def _planned(self) -> int:
        return self.steps * self.world_size if self.plans_single_rank else self.steps

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        w, warmup = self.workload, self.warmup_steps
        largest = w.learning_rate * (self.world_size if w.rate_per_rank else 1)
        if step < warmup:
            start = w.learning_rate if w.rate_per_rank else 0.0
            return start + (largest - start) * (step + 1) / warmup
        done = (step - warmup) / max(1, self._planned - warmup)
        if w.schedule == "steps":
            return largest * 0.1 ** bisect_right(w.milestones, step // self.steps_per_epoch)
        shapes = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        return largest * shapes[w.schedule]
