"""Training recipes, checked when they are defined. Imports no torch, since matrix and tables read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

OPTIMIZERS = ("sgd", "plain-sgd", "adamw", "second-moment-adamw", "adafactor", "rmsprop", "bert-adam")
"""SGD has momentum, plain SGD has none; AdamW of the second moment alone has beta1 = 0."""
SCHEDULES = ("constant", "linear", "cosine", "steps")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The recipe of all cells of one model; the cells differ only in how they treat gradients.

    Lengths are given in steps or in epochs: one of `steps` and `epochs`, at most one of `warmup_steps`,
    `warmup_epochs` and `warmup_share`.
    """

    model: str
    """Name in `benchmarks.core.registry.MODELS`."""
    task: str
    """Name in `benchmarks.core.registry.TASKS`."""
    data: str | None = None
    """Name in `benchmarks.core.registry.DATASETS`; None: the data come with installed packages."""
    weights: str | None = None
    """Name in `benchmarks.core.registry.DATASETS` of the pretrained weights that training starts from."""
    vocabulary: str | None = None
    """Name in `benchmarks.core.registry.DATASETS` of the vocabulary with which the task tokenises text."""
    optimizer: str
    """A name in OPTIMIZERS."""
    learning_rate: float
    """Largest learning rate, applied to the averaged gradient."""
    rate_per_rank: bool = False
    """Whether the learning rate is multiplied by the number of ranks; warm-up then begins at the rate of one rank."""
    momentum: float = 0.9
    """Momentum of SGD; the other optimizers use the usual 0.9 and 0.999."""
    nesterov: bool = False
    weight_decay: float = 0.0
    no_decay: tuple[str, ...] = ()
    """Shell patterns of parameters without weight decay."""
    steps: int | None = None
    """Optimizer steps of a cell."""
    epochs: int | None = None
    """Passes through the training samples."""
    batch_per_rank: int
    length: int | None = None
    """Tokens of a sample, where the task can choose."""
    positions: int | None = None
    """Largest number of tokens of a sample that the model can take."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly."""
    warmup_epochs: int = 0
    warmup_share: float = 0.0
    """Share of all steps in which the learning rate rises."""
    schedule: Literal["constant", "linear", "cosine", "steps"] = "constant"
    """How the learning rate changes after warm-up: not at all, down to zero at the last step, or to a tenth at each of
    `milestones`."""
    milestones: tuple[int, ...] = ()
    """Epochs, counted from 0, at whose start the learning rate falls to a tenth."""
    density_warmup: tuple[float, ...] = ()
    """Densities of the first epochs, for compressors with a density warm-up (DGC)."""
    evaluate_every: int | None = None
    """Steps between two measurements of the metric; None: an epoch. The last step is always followed by one."""
    pretrain_steps: int = 0
    """Dense steps of one process on the task's pretraining part, done once for all cells; 0 starts from scratch."""
    pretrain_batch: int = 0
    pretrain_learning_rate: float = 0.0
    released: Mapping[str, str] = field(default_factory=dict)
    """Deviations of the paper's released code that a cell can ask for: name -> what it does."""

    def __post_init__(self) -> None:
        """Raise ValueError, in one line that names the field, for a recipe that cannot be trained."""
        _among("optimizer", self.optimizer, OPTIMIZERS)
        _among("schedule", self.schedule, SCHEDULES)
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"steps is {self.steps!r} and epochs is {self.epochs!r}: give one of them")
        for name in ("steps", "epochs", "batch_per_rank", "length", "evaluate_every", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}, allowed are numbers greater than 0")
        self._check_warmup()
        if bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError(f"milestones is {self.milestones!r}: give them with schedule 'steps', and only then")
        if self.pretrain_steps and not (self.pretrain_batch > 0 and self.pretrain_learning_rate > 0):
            raise ValueError(
                "pretrain_steps is set, so pretrain_batch and pretrain_learning_rate must be greater than 0"
            )

    def _check_warmup(self) -> None:
        given = [name for name in ("warmup_steps", "warmup_epochs", "warmup_share") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are set: give one of them")
        limits = {"warmup_steps": self.steps, "warmup_epochs": self.epochs, "warmup_share": 1.0}
        for name in given:
            limit = limits[name] or 0
            if not 0 <= getattr(self, name) < limit:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed is less than the training, {limit}")


def _among(field_name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field_name} is {value!r}, allowed are {', '.join(allowed)}")


IMAGES = partial(Workload, optimizer="sgd", rate_per_rank=True, warmup_epochs=5)
"""Images on several ranks: five epochs of warm-up to the scaled learning rate (Goyal et al., 2017)."""
