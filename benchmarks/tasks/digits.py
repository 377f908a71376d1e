"""Handwritten digits (8x8 grey, 1,797 samples, UCI) that ship inside scikit-learn; metric: accuracy in percent."""

import gzip
import io

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.tasks.base import Batch, Setting, chunks, evaluating, installed, sha256, shard, to_device

FILE = "sklearn/datasets/data/digits.csv.gz"
PIXELS = 64
BRIGHTEST = 16
HELD_OUT_EVERY = 4
"""Every fourth sample is held out; the file's order mixes digits and writers."""


def parse_digits(text: bytes) -> tuple[Tensor, Tensor]:
    """Read rows of 64 grey values (0 to 16) and a digit.

    Returns:
        images (n, 1, 8, 8), float32 in [-1, 1], and labels (n,), int64.

    Raises:
        ValueError: if a row has another length, or a value is out of range.
    """
    table = np.loadtxt(io.BytesIO(text), delimiter=",", ndmin=2)
    if table.shape[1] != PIXELS + 1:
        raise ValueError(f"digits have {table.shape[1]} columns, allowed are {PIXELS} pixels and a label")
    pixels, labels = table[:, :PIXELS], table[:, PIXELS]
    if pixels.min() < 0 or pixels.max() > BRIGHTEST:
        raise ValueError(f"digits have pixels in [{pixels.min():g}, {pixels.max():g}], allowed is [0, {BRIGHTEST}]")
    if not np.isin(labels, range(10)).all():
        raise ValueError("digits have labels other than the integers 0 to 9")
    images = torch.from_numpy(pixels).float().div(BRIGHTEST / 2).sub(1).view(-1, 1, 8, 8)
    return images, torch.from_numpy(labels).long()


class Digits:
    """Which digit is it?"""

    metric = "accuracy"
    higher_is_better = True
    unit = "images"
    units_per_sample = 1

    def __init__(self, setting: Setting) -> None:
        """Read the digits; both phases train on the same samples."""
        with gzip.open(str(installed("scikit-learn").locate_file(FILE))) as file:
            self._bytes = file.read()
        images, labels = parse_digits(self._bytes)
        held_out = torch.arange(len(labels)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        self.images, self.labels = images[~held_out], labels[~held_out]
        self.test_images, self.test_labels = images[held_out], labels[held_out]

    def data_hash(self) -> str:
        """Return the SHA-256 of the uncompressed file."""
        return sha256([self._bytes])

    def __len__(self) -> int:
        """Return the number of training images."""
        return len(self.labels)

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        """Return images (batch, 1, 8, 8) and labels (batch,)."""
        return {"images": self.images[indices], "labels": self.labels[indices]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return cross_entropy(model(batch["images"]), batch["labels"])

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return [right, all] over this rank's held-out images."""
        sums = torch.zeros(2, dtype=torch.float64)
        with evaluating(model):
            for indices in chunks(shard(len(self.test_labels), rank, world_size), 128):
                rows = torch.tensor(indices)
                batch = to_device({"images": self.test_images[rows], "labels": self.test_labels[rows]}, model)
                right = model(batch["images"]).argmax(1) == batch["labels"]
                sums += torch.tensor([right.sum().item(), len(right)])
        return sums

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Return the share of right answers in percent."""
        return {"accuracy": float(100 * sums[0] / sums[1])}
