"""How each model is trained: task, optimizer, learning rate, steps.  Imports no torch: matrix and tables read it."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The recipe of all cells of one model; only the gradients' treatment differs between them."""

    model: str
    """Name in `benchmarks.models.MODELS`."""
    task: str
    """Name in `benchmarks.tasks.TASKS`."""
    optimizer: Literal["sgd", "adamw"]
    learning_rate: float
    """Largest learning rate, of the averaged gradient; not multiplied by the number of ranks."""
    momentum: float = 0.9
    """Of SGD; AdamW has its usual 0.9 and 0.999."""
    weight_decay: float = 0.0
    steps: int
    """Optimizer steps of a cell."""
    batch_per_rank: int
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after that: not at all, or down to zero at the last step."""
    evaluate_every: int
    """Steps between two measurements of the metric; the last step is always followed by one."""
    pretrain_steps: int = 0
    """Dense steps of one process on the task's pretraining part, done once for all cells; 0 starts from scratch."""
    pretrain_batch: int = 0
    pretrain_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError, in one line that names the field, for a recipe that cannot be trained."""
        if self.optimizer not in ("sgd", "adamw"):
            raise ValueError(f"optimizer is {self.optimizer!r}, allowed are sgd, adamw")
        if self.schedule not in ("constant", "linear", "cosine"):
            raise ValueError(f"schedule is {self.schedule!r}, allowed are constant, linear, cosine")
        for name in ("steps", "batch_per_rank", "evaluate_every", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, allowed are numbers greater than 0")
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps}, allowed are 0 to {self.steps - 1} with steps {self.steps}"
            )
        if self.pretrain_steps and not (self.pretrain_batch > 0 and self.pretrain_learning_rate > 0):
            raise ValueError(
                "pretrain_steps is set, so pretrain_batch and pretrain_learning_rate must be greater than 0"
            )

    def learning_rate_at(self, step: int, steps: int | None = None) -> float:
        """Return the learning rate of a step (from 0), in a run of `steps` (default: the recipe's) steps."""
        total = self.steps if steps is None else steps
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        shapes = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        return self.learning_rate * shapes[self.schedule]


# Learning rates were chosen so that the models can tell residual schemes apart: dense training needs the whole run to
# converge. At higher ones (the VGG at 0.01, the BERT at 2e-4) training without residuals ended about as well as with
# them, in trials; results/reference/tell.json has what was measured with these.
_ALL = (
    Workload(
        model="resnet-digits",
        task="digits",
        optimizer="sgd",
        learning_rate=0.01,
        steps=160,
        batch_per_rank=8,
        schedule="cosine",
        evaluate_every=40,
    ),
    Workload(
        model="vgg-digits",
        task="digits",
        optimizer="sgd",
        learning_rate=0.001,
        steps=200,
        batch_per_rank=16,
        schedule="cosine",
        evaluate_every=50,
    ),
    Workload(
        model="gpt2-bytes",
        task="bytes",
        optimizer="adamw",
        learning_rate=1e-4,
        steps=200,
        batch_per_rank=4,
        evaluate_every=50,
        pretrain_steps=400,
        pretrain_batch=12,
        pretrain_learning_rate=1e-3,
    ),
    Workload(
        model="bert-questions",
        task="questions",
        optimizer="adamw",
        learning_rate=1e-4,
        steps=200,
        batch_per_rank=6,
        evaluate_every=50,
        pretrain_steps=400,
        pretrain_batch=16,
        pretrain_learning_rate=1e-3,
    ),
)

WORKLOADS: dict[str, Workload] = {workload.model: workload for workload in _ALL}
