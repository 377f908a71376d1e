"""Where a task's samples come from: prepared files, or random numbers made when they are asked for."""

from typing import Protocol

import numpy as np
from torch import Tensor

from benchmarks.tasks.base import Batch, Setting, sha256

SYNTHETIC_SAMPLES = 8192
"""Training samples that a synthetic source offers: an epoch has some steps for any number of ranks."""
SYNTHETIC_HELD_OUT = 2
"""One evaluation costs little, so that it is not what is measured."""


class Source(Protocol):
    """Training samples and held-out ones, all of one shape."""

    held_out: int
    """Number of held-out samples."""

    def __len__(self) -> int:
        """Return the number of training samples."""
        ...

    def batch(self, indices: Tensor, step: int) -> Batch:
        """Gather training samples as `benchmarks.tasks.base.Task.batch` does."""
        ...

    def held_out_batch(self, indices: range) -> Batch:
        """Gather held-out samples, without augmentation."""
        ...

    def data_hash(self) -> str:
        """Return the SHA-256 of what the samples are made from, in hexadecimal digits."""
        ...


def draws(*key: int) -> np.random.Generator:
    """Random numbers that belong to a key of whole numbers, such as seed, step and index, and to nothing else."""
    return np.random.default_rng(key)


def synthetic_hash(setting: Setting, kind: str) -> str:
    """Return the SHA-256 of what random samples depend on."""
    return sha256([f"synthetic {kind} {setting.classes} {setting.length} {setting.seed}".encode()])
