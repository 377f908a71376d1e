"""Where a task's samples come from, prepared files or random numbers, and what all tasks on images share."""

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.core.prepared import Prepared
from benchmarks.training.tasks.task import Batch, Setting, chunks, evaluating, sha256, shard, to_device
from resireduce.errors import ConfigError

SYNTHETIC_SAMPLES = 8192
"""Training samples of a synthetic source: enough that an epoch has some steps for any number of ranks."""
SYNTHETIC_HELD_OUT = 2
"""Held-out samples of a synthetic source: so few that evaluation hardly affects measurements."""


class Source(ABC):
    """Training samples and held-out ones, all of one shape.

    `data_hash` is the SHA-256 of what the samples are made from, in hexadecimal digits.
    """

    samples: int
    """Number of training samples."""
    held_out: int
    """Number of held-out samples."""

    def __init__(self, data_hash: str) -> None:
        self.data_hash = data_hash

    @abstractmethod
    def batch(self, indices: Tensor, step: int) -> Batch:
        """Gather training samples as `benchmarks.training.tasks.task.Task.batch` does."""

    @abstractmethod
    def held_out_batch(self, indices: range) -> Batch:
        """Gather held-out samples, without augmentation."""


class FromSource(ABC):
    """Base of tasks whose samples all come from `source`, and whose metric is a quotient of two sums."""

    evaluated_together: int
    """Held-out samples in a batch."""

    def __init__(self, source: Source, batch_means: bool) -> None:
        """batch_means: the metric is, as the released code prints it, the mean over batches of rank 0 alone."""
        self.source, self.batch_means = source, batch_means

    def data_hash(self) -> str:
        """Return the source's SHA-256."""
        return self.source.data_hash

    def __len__(self) -> int:
        """Return the number of training samples."""
        return self.source.samples

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        """Return the source's training samples with these indices, augmented where it does that."""
        return self.source.batch(indices, step)

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return the two sums over this rank's held-out samples.

        With batch means rank 0 returns [sum of its batches' means, batches], and the others nothing but zeros.
        """
        sums = torch.zeros(2, dtype=torch.float64)
        if self.batch_means and rank:
            return sums
        with evaluating(model):
            for indices in chunks(shard(self.source.held_out, rank, world_size), self.evaluated_together):
                batch = to_device(self.source.held_out_batch(indices), model)
                sums += torch.tensor(self._sums(model, batch), dtype=torch.float64)
        return sums

    @abstractmethod
    def _sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """Return the two sums over a batch, or its mean and 1."""


def open_array(prepared: Prepared, file: str, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    """Read an array of prepared data. Raises ConfigError, one line, for a file that is not one."""
    try:
        array: NDArray[Any] = np.load(prepared.folder / file, mmap_mode=mmap_mode, allow_pickle=False)
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise ValueError("it holds no array")
    except (OSError, ValueError, EOFError, SyntaxError, TypeError) as error:  # of a damaged header
        raise damaged(prepared, file, error) from None
    return array


def damaged(prepared: Prepared, file: str, error: object) -> ConfigError:
    """Return what to raise for a prepared file that has its size but not its content, in one line."""
    reason, name = " ".join(str(error).split())[:200] or type(error).__name__, prepared.folder.name
    return ConfigError(f"data: {prepared.folder / file} is damaged ({reason}); prepare {name!r} again")


def draws(*key: int) -> np.random.Generator:
    """Return a generator that depends only on a key of whole numbers, such as seed, step and index."""
    return np.random.default_rng(key)


def synthetic_hash(setting: Setting, kind: str) -> str:
    """Return the SHA-256 of what random samples depend on."""
    return sha256([f"synthetic {kind} {setting.length} {setting.seed}".encode()])


class Synthetic(Source):
    """Random samples, made when they are asked for from the setting's seed and their number alone.

    Args:
        setting: whose seed and length they depend on.
        kind: what else they depend on, in words.
    """

    samples, held_out = SYNTHETIC_SAMPLES, SYNTHETIC_HELD_OUT

    def __init__(self, setting: Setting, kind: str) -> None:
        super().__init__(synthetic_hash(setting, kind))
        self._seed = setting.seed

    def batch(self, indices: Tensor, step: int) -> Batch:
        """Return these samples, the same in every step."""
        return self._make([draws(self._seed, index) for index in indices.tolist()])

    def held_out_batch(self, indices: range) -> Batch:
        """Return samples that are none of the training samples."""
        return self._make([draws(self._seed, SYNTHETIC_SAMPLES + index) for index in indices])

    @abstractmethod
    def _make(self, generators: list[np.random.Generator]) -> Batch:
        """Draw a sample from each."""


class ImageClassification(FromSource):
    """Classify images of `source`. With "batch-means" in `released`, accuracy is computed as in the released code.

    Batches have images (batch, channels, height, width), float32, normalised, and labels (batch,), int64.
    """

    metric = "top1"
    higher_is_better = True
    unit = "images"
    units_per_sample = 1
    evaluated_together = 32
    """As in the released scripts."""

    def __init__(self, source: Source, released: frozenset[str]) -> None:
        super().__init__(source, "batch-means" in released)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return cross_entropy(model(batch["images"]), batch["labels"])

    def _sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """Return the number of right answers, and of all."""
        right = (model(batch["images"]).argmax(1) == batch["labels"]).sum().item()
        count = len(batch["labels"])
        return (right / count, 1) if self.batch_means else (right, count)

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Return the share of right answers in percent."""
        return {self.metric: float(100 * sums[0] / sums[1])}


class SyntheticImages(Synthetic):
    """Random square images of `size` pixels a side and random labels below `classes`."""

    def __init__(self, setting: Setting, classes: int, size: int) -> None:
        super().__init__(setting, f"images {classes} {size}")
        self.classes, self.size = classes, size

    def _make(self, generators: list[np.random.Generator]) -> Batch:
        shape = (3, self.size, self.size)
        labels = torch.tensor([int(one.integers(self.classes)) for one in generators])
        images = np.stack([one.standard_normal(shape, dtype=np.float32) for one in generators])
        return {"images": torch.from_numpy(images), "labels": labels}
