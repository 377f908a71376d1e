"""The base of tasks, where their samples come from, and what they share."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
Phase = Literal["pretrain", "train"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings that a task's data depend on."""

    phase: Phase = "train"
    """Chooses the part of the data that is trained on and held out."""
    data: str | None = None
    """Name of the data set in `core.registry.DATASETS`; None for tasks whose data come with installed packages."""
    root: Path = Path("data")
    """Folder of prepared data sets."""
    synthetic: bool = False
    """Make random inputs of the right shapes; nothing is read."""
    length: int | None = None
    """Tokens of a sample."""
    seed: int = 0
    """Seed of augmentation and of synthetic inputs; the order of samples is the trainer's."""
    released: frozenset[str] = frozenset()
    """Names of the released code's deviations that are to be reproduced."""


class Source(ABC):
    """Training samples and held-out ones."""

    samples: int
    """Number of training samples."""
    held_out: int
    """Number of held-out samples."""
    data_hash: str
    """SHA-256 of the bytes really used, in hexadecimal digits."""

    @abstractmethod
    def batch(self, indices: Tensor, step: int) -> Batch:
        """Gather the training samples with these indices (int64, one dimension) into tensors, samples first.

        Augmentation depends on the setting's seed, on `step` and on the index alone: the same on any number of ranks.
        """

    @abstractmethod
    def held_out_batch(self, indices: range) -> Batch:
        """Gather held-out samples, without augmentation."""


class InMemory(Source):
    """Samples that are all held as tensors, as they are: training ones and held-out ones."""

    def __init__(self, train: Batch, test: Batch, data_hash: str) -> None:
        self.train, self.test, self.data_hash = train, test, data_hash
        self.samples, self.held_out = (len(next(iter(part.values()))) for part in (train, test))

    def batch(self, indices: Tensor, step: int) -> Batch:
        return {name: values[indices] for name, values in self.train.items()}

    def held_out_batch(self, indices: range) -> Batch:
        return {name: values[torch.tensor(indices)] for name, values in self.test.items()}


class Task(ABC):
    """Data, loss and metric of one kind of problem. It is made with a `Setting`, and does all its loading there."""

    metric: str
    """The metric's name as it stands in tables."""
    higher_is_better: bool
    unit: str
    """What throughput is counted in: images, tokens."""
    units_per_sample: int
    evaluated_together: int
    """Held-out samples in a batch."""
    summed = 2
    """Number of sums that the metrics are made from."""

    def __init__(self, source: Source, batch_means: bool = False) -> None:
        """Take samples from `source`; `batch_means`: the metric is the mean over batches of rank 0 alone."""
        self.source, self.batch_means = source, batch_means

    def __len__(self) -> int:
        """Return the number of training samples."""
        return self.source.samples

    @property
    def data_hash(self) -> str:
        """The source's."""
        return self.source.data_hash

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        """Gather training samples as `Source.batch` does."""
        return self.source.batch(indices, step)

    def held_out_batch(self, model: nn.Module, indices: range) -> Batch:
        """Return held-out samples on the model's device."""
        return to_device(self.source.held_out_batch(indices), model)

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of the batch, a scalar to call backward on; model and batch share one device."""

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return this rank's sums (float64, one dimension) over its shard of the held-out samples, without gradients.

        Shards are disjoint and cover every sample once, so that adding the sums over ranks and calling `metrics_from`
        gives the metrics whatever the number of ranks, up to rounding. With batch means only rank 0 has any.
        """
        own = range(rank, self.source.held_out, world_size) if not (rank and self.batch_means) else range(0)
        sums, training = torch.zeros(self.summed, dtype=torch.float64), model.training
        model.eval()
        try:
            with torch.no_grad():
                for start in range(0, len(own), self.evaluated_together):
                    for scores in self._scores(model, own[start : start + self.evaluated_together]):
                        sums += torch.tensor(scores, dtype=torch.float64)
        finally:
            model.train(training)
        return sums

    @abstractmethod
    def _scores(self, model: nn.Module, indices: range) -> Iterable[Sequence[float]]:
        """Return for the held-out samples of one batch what is added to the sums, in this order."""

    @abstractmethod
    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Turn sums that were added over all ranks into all metrics by name; `metric` is one of them."""


SYNTHETIC_SAMPLES = 8192
"""Training samples of a synthetic source: enough that an epoch has some steps for any number of ranks."""
SYNTHETIC_HELD_OUT = 2
"""Held-out samples of a synthetic source: so few that evaluation hardly affects measurements."""


class Synthetic(Source):
    """Random samples, made when they are asked for from the setting's seed and their number alone; no two are equal.

    Args:
        setting: whose seed and length they depend on.
        kind: what else they depend on, in words.
        make: draws a sample from each of some generators.
    """

    samples, held_out = SYNTHETIC_SAMPLES, SYNTHETIC_HELD_OUT

    def __init__(self, setting: Setting, kind: str, make: Callable[[list[np.random.Generator]], Batch]) -> None:
        self.data_hash = synthetic_hash(setting, kind)
        self._seed, self._make = setting.seed, make

    def batch(self, indices: Tensor, step: int) -> Batch:
        return self._make([draws(self._seed, index) for index in indices.tolist()])

    def held_out_batch(self, indices: range) -> Batch:
        return self._make([draws(self._seed, SYNTHETIC_SAMPLES + index) for index in indices])


def draws(*key: int) -> np.random.Generator:
    """Return a generator that depends only on a key of whole numbers, such as seed, step and index."""
    return np.random.default_rng(key)


def synthetic_hash(setting: Setting, kind: str) -> str:
    """Return the SHA-256 of what random samples depend on."""
    return sha256([f"synthetic {kind} {setting.length} {setting.seed}".encode()])


def sha256(parts: Iterable[bytes]) -> str:
    """Hash byte strings in order, each with its length, so that moving a boundary changes the hash."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def to_device(batch: Batch, model: nn.Module) -> Batch:
    """Copy the batch to where the model's parameters are (no copy if it is there)."""
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


def installed(package: str) -> Distribution:
    """Find an installed distribution whose files serve as data. Raises ValueError if it is not installed."""
    try:
        return distribution(package)
    except PackageNotFoundError:
        raise ValueError(
            f"the data come from package {package!r}, which is not installed: run make to set up"
        ) from None
