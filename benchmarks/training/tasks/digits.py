"""Handwritten digits (8x8 grey, 1,797 samples, UCI) that ship inside scikit-learn; metric: accuracy in percent."""

import gzip
import io

import numpy as np
import torch
from torch import Tensor

from benchmarks.training.tasks.task import Batch, ImageClassification, Setting, Source, installed, sha256

FILE = "sklearn/datasets/data/digits.csv.gz"
PIXELS = 64
BRIGHTEST = 16
HELD_OUT_EVERY = 4
"""Every fourth sample is held out; the file's order mixes digits and writers."""


def parse_digits(text: bytes) -> tuple[Tensor, Tensor]:
    """Read rows of 64 grey values (0 to 16) and a digit: images (n, 1, 8, 8), float32 in [-1, 1], and labels (n,)."""
    table = np.loadtxt(io.BytesIO(text), delimiter=",", ndmin=2)
    pixels, labels = table[:, :PIXELS], table[:, PIXELS]
    images = torch.from_numpy(pixels).float().div(BRIGHTEST / 2).sub(1).view(-1, 1, 8, 8)
    return images, torch.from_numpy(labels).long()


class Digits(ImageClassification):
    """Which digit is it? Both phases train on the same samples."""

    metric = "accuracy"

    def __init__(self, setting: Setting) -> None:
        super().__init__(DigitImages(), setting.released)


class DigitImages(Source):
    """The images that scikit-learn has, (n, 1, 8, 8), as they are."""

    def __init__(self) -> None:
        with gzip.open(str(installed("scikit-learn").locate_file(FILE))) as file:
            content = file.read()
        self.data_hash = sha256([content])
        images, labels = parse_digits(content)
        is_test = torch.arange(len(labels)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        self.images, self.labels = images[~is_test], labels[~is_test]
        self.test_images, self.test_labels = images[is_test], labels[is_test]
        self.samples, self.held_out = len(self.labels), len(self.test_labels)

    def batch(self, indices: Tensor, step: int) -> Batch:
        return {"images": self.images[indices], "labels": self.labels[indices]}

    def held_out_batch(self, indices: range) -> Batch:
        rows = torch.tensor(indices)
        return {"images": self.test_images[rows], "labels": self.test_labels[rows]}
