"""How each model is trained: data, optimizer, learning rate, length. Imports no torch."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from resireduce.errors import ConfigError

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
        for name, allowed in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, allowed are {', '.join(allowed)}")
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


IMAGES = partial(Workload, optimizer="sgd", rate_per_rank=True, warmup_epochs=5)
"""Images on several ranks: five epochs of warm-up to the scaled learning rate (Goyal et al., 2017)."""


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


# --- Models whose data come with installed packages: those of `make run`, and one that takes an hour ---

_digits = partial(Workload, task="digits", optimizer="sgd", schedule="cosine")
_text = partial(
    Workload,
    optimizer="adamw",
    learning_rate=1e-4,
    steps=200,
    evaluate_every=50,
    pretrain_steps=400,
    pretrain_learning_rate=1e-3,
)
# Learning rates were chosen so that the models can tell residual schemes apart: dense training needs the whole run to
# converge. In trials at higher rates (the VGG at 0.01, the BERT at 2e-4), training without residuals ended about as
# well as with them; results/reference/tell.json has the measurements at these rates.
SMALL = (
    _digits(model="resnet-digits", learning_rate=0.01, steps=160, batch_per_rank=8, evaluate_every=40),
    _digits(model="vgg-digits", learning_rate=0.001, steps=200, batch_per_rank=16, evaluate_every=50),
    _text(model="gpt2-bytes", task="bytes", batch_per_rank=4, pretrain_batch=12),
    _text(model="bert-questions", task="questions", batch_per_rank=6, pretrain_batch=16),
)

# At a sixth of the best learning rate of gpt2-bytes, which is a sixth as wide.
LARGER = (
    Workload(
        model="gpt2-small-bytes",
        task="bytes",
        optimizer="adamw",
        learning_rate=5e-4,
        steps=500,
        warmup_steps=50,
        schedule="cosine",
        batch_per_rank=2,
        evaluate_every=50,
    ),
)


# --- The six workloads of the ResiReduce paper (Table 1, section 5), as its released scripts train them ---
#
# Defects of those scripts are off here, and can be requested by the names in `released`.

FIXED_ORDER = "every epoch goes through the samples in the same order"
BATCH_MEANS = "accuracy is the mean over batches, the last of which is smaller, and of rank 0's shard alone"
LONG_WARMUP = "planned steps are those of one rank, so that warm-up takes most of the training and decay hardly begins"
RANK_PERPLEXITY = "perplexity is the exponential of the mean over batches of rank 0's shard alone"
WIKITEXT_2 = "trains on WikiText-2; the paper says WikiText-103"

_image = partial(
    IMAGES,
    task="cifar",
    data="cifar100",
    learning_rate=0.0125,
    weight_decay=5e-5,
    epochs=80,
    schedule="steps",
    milestones=(30, 60),
    batch_per_rank=32,
    released={"batch-means": BATCH_MEANS},
)
_bert = partial(
    Workload,
    task="squad",
    data="squad",
    vocabulary="bert-vocabulary",
    optimizer="bert-adam",
    learning_rate=3e-5,
    weight_decay=0.01,
    no_decay=("*.bias", "*.LayerNorm.weight"),
    epochs=4,
    warmup_share=0.1,
    schedule="linear",
    batch_per_rank=4,
    length=384,
    positions=512,
    released={"long-warmup": LONG_WARMUP, "fixed-order": FIXED_ORDER},
)
_gpt2 = partial(
    Workload,
    task="wikitext",
    data="wikitext-103",
    optimizer="adamw",
    learning_rate=5e-5,
    epochs=2,
    schedule="linear",
    batch_per_rank=2,
    length=1024,
    positions=1024,
    released={"rank-perplexity": RANK_PERPLEXITY, "fixed-order": FIXED_ORDER, "wikitext-2": WIKITEXT_2},
)

PAPER = (
    _image(model="resnet50"),
    _image(model="vgg19"),
    _bert(model="bert-base", weights="bert-base-weights"),
    _bert(model="bert-large", weights="bert-large-weights"),
    _gpt2(model="gpt2-medium", weights="gpt2-medium-weights"),
    _gpt2(model="gpt2-large", weights="gpt2-large-weights"),
)


# --- Quick-start jobs of the READMEs (ResiReduce, AD-Topk, RGMerge: ViT-large, ResNet-152), and DGC's own settings ---

DGC_WARMUP = (0.25, 0.0625, 0.015625, 0.004, 0.001)
"""Densities of the first five epochs, from DGC's paper and README."""
_cifar = partial(
    IMAGES,
    task="cifar",
    data="cifar10",
    learning_rate=0.1,
    weight_decay=1e-4,
    epochs=200,
    schedule="cosine",
    batch_per_rank=128,
    density_warmup=DGC_WARMUP,
)
_imagenet = partial(
    IMAGES,
    task="imagenet",
    data="imagenet",
    learning_rate=0.0125,
    epochs=90,
    schedule="steps",
    milestones=(30, 60, 80),
    batch_per_rank=32,
)
BATCH_NORM = ("*bn?.weight", "*bn?.bias", "*downsample.1.weight", "*downsample.1.bias")
_resnet = partial(_imagenet, weight_decay=1e-4, nesterov=True, no_decay=BATCH_NORM)

READMES = (
    _cifar(model="resnet20"),
    _cifar(model="resnet110"),
    _resnet(model="resnet50-imagenet"),
    _resnet(model="resnet152-imagenet"),
    _imagenet(model="vgg16-imagenet", weight_decay=5e-5),
    # As in the fine-tuning script of the READMEs: AdamW, three epochs, from weights pretrained on ImageNet-21k.
    Workload(
        model="vit-large",
        task="imagenet-half",
        data="imagenet",
        weights="vit-large-weights",
        optimizer="adamw",
        learning_rate=5e-5,
        epochs=3,
        schedule="linear",
        batch_per_rank=8,
    ),
)

WORKLOADS: dict[str, Workload] = {workload.model: workload for workload in (*SMALL, *LARGER, *PAPER, *READMES)}
"""The recipe of each model that cells can name."""
