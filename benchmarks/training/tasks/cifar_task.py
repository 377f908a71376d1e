"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 60,000 colour images of 32x32 pixels; metric: Top-1 accuracy.

CIFAR-100 is augmented as in the paper's scripts: a crop of 32 from the image with 4 black pixels around it, a flip in
half of the cases, a rotation by at most 15 degrees to the nearest pixel, black outside. CIFAR-10 has no rotation, as in
DGC's scripts. All three are combined into one look-up of pixels here.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.core.prepared import Prepared, open_prepared
from benchmarks.training.tasks.task import (
    Batch,
    ImageClassification,
    Setting,
    Source,
    draws,
    open_array,
    synthetic_images,
)
from resireduce.errors import ConfigError, choose

SIZE = 32
PADDING = 4
CENTRE = (SIZE - 1) / 2


@dataclass(frozen=True)
class Variant:
    """What differs between the two data sets: `mean` and `std` are of pixels from 0 to 1, by channel."""

    classes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    degrees: float
    """Largest angle of rotation."""


VARIANTS = {
    "cifar10": Variant(10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), 0.0),
    "cifar100": Variant(100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 15.0),
}


class Cifar(ImageClassification):
    """Classify the images of CIFAR-10 or -100. A model may have more outputs than there are labels."""

    def __init__(self, setting: Setting) -> None:
        """Open the prepared images, or make random ones."""
        name = choose("data", setting.data, VARIANTS)
        source = (
            synthetic_images(setting, VARIANTS[name].classes, SIZE)
            if setting.synthetic
            else CifarImages(open_prepared(name, setting.root), VARIANTS[name], setting.seed)
        )
        super().__init__(source, setting.released)


class CifarImages(Source):
    """Prepared images, augmented from seed, step and index alone."""

    def __init__(self, prepared: Prepared, variant: Variant, seed: int) -> None:
        self.data_hash, self._variant, self._seed = prepared.hash, variant, seed
        self.images, self.labels = _load(prepared, "train", variant.classes)
        self.test_images, self.test_labels = _load(prepared, "test", variant.classes)
        self.samples, self.held_out = len(self.labels), len(self.test_labels)

    def batch(self, indices: Tensor, step: int) -> Batch:
        """Return images (batch, 3, 32, 32), augmented, and labels (batch,)."""
        rows = indices.numpy()
        generators = [draws(self._seed, step, int(index)) for index in rows]
        top_left = np.array([one.integers(0, 2 * PADDING + 1, 2) for one in generators])
        flips = np.array([one.random() < 0.5 for one in generators])
        most = self._variant.degrees
        angles = np.array([one.uniform(-most, most) for one in generators])
        images = look_up(self.images[rows], top_left, flips, angles)
        return {"images": self._normalised(images), "labels": torch.from_numpy(self.labels[rows])}

    def held_out_batch(self, indices: range) -> Batch:
        rows = np.array(indices)
        labels = torch.from_numpy(self.test_labels[rows])
        return {"images": self._normalised(self.test_images[rows]), "labels": labels}

    def _normalised(self, images: NDArray[np.uint8]) -> Tensor:
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (self._variant.mean, self._variant.std))
        return torch.from_numpy(images).float().div_(255).sub_(mean).div_(std)


def look_up(
    images: NDArray[np.uint8], top_left: NDArray[np.int64], flips: NDArray[np.bool_], degrees: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Crop, then flip, then rotate images (n, 3, 32, 32): each pixel of the result is one of the image, or black.

    Args:
        images: to be augmented.
        top_left: row and column of the crop in the image with its padding, 0 to 8, (n, 2).
        flips: which are mirrored left to right, (n,).
        degrees: of rotation about the centre, counter-clockwise, (n,).
    """
    y, x = np.mgrid[:SIZE, :SIZE] - CENTRE
    cosine, sine = (function(np.deg2rad(degrees))[:, None, None] for function in (np.cos, np.sin))
    # Halves are rounded down, as in Pillow: floor(v + 0.5) of the pixel's centre.
    columns = np.floor(cosine * x - sine * y + CENTRE + 0.5).astype(np.int64)
    rows = np.floor(sine * x + cosine * y + CENTRE + 0.5).astype(np.int64)
    inside = (rows >= 0) & (rows < SIZE) & (columns >= 0) & (columns < SIZE)
    columns = np.where(flips[:, None, None], SIZE - 1 - columns, columns)
    rows += top_left[:, 0, None, None] - PADDING
    columns += top_left[:, 1, None, None] - PADDING
    inside &= (rows >= 0) & (rows < SIZE) & (columns >= 0) & (columns < SIZE)
    places = np.where(inside, rows * SIZE + columns, 0).reshape(len(images), 1, -1)
    found = np.take_along_axis(images.reshape(len(images), 3, -1), places, axis=2)
    return np.where(inside.reshape(places.shape), found, 0).astype(np.uint8).reshape(images.shape)


def _load(prepared: Prepared, part: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read a part's images and labels. Raises ConfigError, one line, if they are not of the prepared format."""
    images = open_array(prepared, f"{part}_images.npy", "r")
    labels = open_array(prepared, f"{part}_labels.npy")
    of_format = images.dtype == np.uint8 and images.shape == (*labels.shape, 3, SIZE, SIZE) and labels.dtype == np.int64
    if not of_format or not len(labels) or labels.min() < 0 or labels.max() >= classes:
        raise ConfigError(
            f"data: the {part} images in {prepared.folder} are {images.dtype} {images.shape} with labels "
            f"{labels.dtype} {labels.shape}; allowed: uint8 (n, 3, 32, 32), int64 (n,) below {classes}; prepare again"
        )
    return images, labels
