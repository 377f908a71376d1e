"""Where a task's samples come from, prepared files or random numbers, and what all tasks on images share."""

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.core.prepared import Prepared
from benchmarks.training.tasks.task import Batch, Setting, Task, sha256, to_device
from resireduce.errors import ConfigError

SYNTHETIC_SAMPLES = 8192
"""Training samples of a synthetic source: enough that an epoch has some steps for any number of ranks."""
SYNTHETIC_HELD_OUT = 2
"""Held-out samples of a synthetic source: so few that evaluation hardly affects measurements."""


class Source(ABC):
    """Training samples and held-out ones, all of one shape, with the attributes of `Task` that describe them."""

    samples: int
    held_out: int

    def __init__(self, data_hash: str) -> None:
        self.data_hash = data_hash

    @abstractmethod
    def batch(self, indices: Tensor, step: int) -> Batch:
        """Gather training samples as `Task.batch` does."""

    @abstractmethod
    def held_out_batch(self, indices: range) -> Batch:
        """Gather held-out samples, without augmentation."""


class FromSource(Task):
    """Base of tasks whose samples all come from `source`."""

    def __init__(self, source: Source, batch_means: bool) -> None:
        self.source, self.batch_means = source, batch_means
        self.data_hash, self.samples, self.held_out = source.data_hash, source.samples, source.held_out

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        return self.source.batch(indices, step)

    def held_out_batch(self, model: nn.Module, indices: range) -> Batch:
        """Return held-out samples on the model's device."""
        return to_device(self.source.held_out_batch(indices), model)


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
    """Random samples, made when they are asked for from the setting's seed and their number alone; no two are equal.

    Args:
        setting: whose seed and length they depend on.
        kind: what else they depend on, in words.
    """

    samples, held_out = SYNTHETIC_SAMPLES, SYNTHETIC_HELD_OUT

    def __init__(self, setting: Setting, kind: str) -> None:
        super().__init__(synthetic_hash(setting, kind))
        self._seed = setting.seed

    def batch(self, indices: Tensor, step: int) -> Batch:
        return self._make([draws(self._seed, index) for index in indices.tolist()])

    def held_out_batch(self, indices: range) -> Batch:
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

    def _scores(self, model: nn.Module, indices: range) -> list[tuple[float, int]]:
        """Return the number of right answers, and of all."""
        batch = self.held_out_batch(model, indices)
        right = (model(batch["images"]).argmax(1) == batch["labels"]).sum().item()
        return [(right / len(indices), 1) if self.batch_means else (right, len(indices))]

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
