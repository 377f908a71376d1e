"""Classification of images: handwritten digits, CIFAR and ImageNet; metric: Top-1 accuracy.

**Digits** (8x8 grey, 1,797 samples, UCI) ship inside scikit-learn.

**CIFAR-10 and CIFAR-100** (Krizhevsky, 2009): 60,000 colour images of 32x32 pixels. CIFAR-100 is augmented as in the
paper's scripts: a crop of 32 from the image with 4 black pixels around it, a flip in half of the cases, a rotation by
at most 15 degrees to the nearest pixel, black outside; all three are one look-up of pixels here. CIFAR-10 has no
rotation, as in DGC's scripts.

**ImageNet** (Russakovsky et al., 2015), or any folder of images in folders of classes. Training images: a random part
of 8 to 100 % of the area, of an aspect from 3/4 to 4/3, scaled to 224x224, and a flip in half of the cases. Validation:
the shorter side scaled to 256, the centre 224x224. All bilinear.
"""

import gzip
import io
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.core.files import load_json
from benchmarks.core.prepared import Prepared, open_prepared
from benchmarks.core.provenance import cores
from benchmarks.training.tasks.task import Batch, InMemory, Setting, Source, Synthetic, Task, draws, installed, sha256
from resireduce.errors import ConfigError, choose

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageClassification(Task):
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


def synthetic_images(setting: Setting, classes: int, size: int) -> Synthetic:
    """Return random square images of `size` pixels a side with random labels below `classes`."""

    def make(generators: list[np.random.Generator]) -> Batch:
        labels = torch.tensor([int(one.integers(classes)) for one in generators])
        images = np.stack([one.standard_normal((3, size, size), dtype=np.float32) for one in generators])
        return {"images": torch.from_numpy(images), "labels": labels}

    return Synthetic(setting, f"images {classes} {size}", make)


# --- Digits ---

FILE = "sklearn/datasets/data/digits.csv.gz"
PIXELS = 64
BRIGHTEST = 16
HELD_OUT_EVERY = 4
"""Every fourth sample is held out; the file's order mixes digits and writers."""


class Digits(ImageClassification):
    """Which digit is it? Both phases train on the same samples: images (n, 1, 8, 8) from -1 to 1."""

    metric = "accuracy"

    def __init__(self, setting: Setting) -> None:
        with gzip.open(str(installed("scikit-learn").locate_file(FILE))) as file:
            content = file.read()
        table = torch.from_numpy(np.loadtxt(io.BytesIO(content), delimiter=","))  # rows of 64 grey values and a digit
        images = table[:, :PIXELS].float().div(BRIGHTEST / 2).sub(1).view(-1, 1, 8, 8)
        labels = table[:, PIXELS].long()
        is_test = torch.arange(len(labels)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        train, test = ({"images": images[part], "labels": labels[part]} for part in (~is_test, is_test))
        super().__init__(InMemory(train, test, sha256([content])), setting.released)


def normalised(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return pixels (..., 3, height, width) from 0 to 255 less the mean and over the deviation of each channel."""
    means, deviations = (torch.tensor(each).view(3, 1, 1) for each in (mean, std))
    return pixels.float().div_(255).sub_(means).div_(deviations)


# --- CIFAR ---

SIZE = 32
PADDING = 4
CENTRE = (SIZE - 1) / 2


class Variant(NamedTuple):
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
        names = ("train_images", "train_labels", "test_images", "test_labels")
        self.images, self.labels, self.test_images, self.test_labels = (
            np.load(prepared.folder / f"{name}.npy", "r") for name in names
        )
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
        return normalised(torch.from_numpy(images), self._variant.mean, self._variant.std)


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


# --- ImageNet ---

CLASSES = 1000
PHOTO_SIZE = 224
SHORTER_SIDE = 256
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
ATTEMPTS = 10
BILINEAR = 2
"""Pillow's number for it: Pillow is imported where an image is opened."""
THREADS = min(8, cores())
"""Threads of one rank that decode images: Pillow gives up Python's lock while it does."""

Box = tuple[int, int, int, int]


class ImageNet(ImageClassification):
    """Classify photographs; pixels are normalised by the data set's own mean and standard deviation, by channel."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __init__(self, setting: Setting) -> None:
        """Read the list of images, or make random ones."""
        source = (
            synthetic_images(setting, CLASSES, PHOTO_SIZE)
            if setting.synthetic
            else Photographs(open_prepared("imagenet", setting.root), self.mean, self.std, setting.seed)
        )
        super().__init__(source, setting.released)


class ImageNetHalf(ImageNet):
    """ImageNet with pixels from -1 to 1, as vision transformers pretrained on ImageNet-21k expect them."""

    mean = std = (0.5, 0.5, 0.5)


class Photographs(Source):
    """Image files named by a prepared list, decoded by a few threads when they are asked for."""

    def __init__(self, prepared: Prepared, mean: tuple[float, ...], std: tuple[float, ...], seed: int) -> None:
        self.data_hash, self._seed = prepared.hash, seed
        listed = load_json(prepared.folder / "images.json")
        self._folder, self.train, self.val = Path(listed["folder"]), listed["train"], listed["val"]
        self.samples, self.held_out = len(self.train), len(self.val)
        self._mean, self._std = mean, std
        self._pool = ThreadPoolExecutor(THREADS)

    def batch(self, indices: Tensor, step: int) -> Batch:
        """Return images (batch, 3, 224, 224), augmented, and labels (batch,)."""

        def augmented(index: int) -> Tensor:
            generator = draws(self._seed, step, index)
            image = self._open(self.train[index][0])
            image = image.crop(random_box(image.size, generator)).resize((PHOTO_SIZE, PHOTO_SIZE), BILINEAR)
            pixels = self._normalised(image)
            return pixels.flip(2) if generator.random() < 0.5 else pixels

        numbers = indices.tolist()
        images = torch.stack(list(self._pool.map(augmented, numbers)))
        return {"images": images, "labels": torch.tensor([self.train[index][1] for index in numbers])}

    def held_out_batch(self, indices: range) -> Batch:

        def centred(index: int) -> Tensor:
            return self._normalised(centre(self._open(self.val[index][0])))

        images = torch.stack(list(self._pool.map(centred, indices)))
        return {"images": images, "labels": torch.tensor([self.val[index][1] for index in indices])}

    def _open(self, path: str) -> "Image":
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(self._folder / path) as image:
                return image.convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            raise ConfigError(f"data: {self._folder / path} cannot be decoded: {error}") from None

    def _normalised(self, image: "Image") -> Tensor:
        return normalised(torch.from_numpy(np.array(image)).permute(2, 0, 1), self._mean, self._std)


def random_box(size: tuple[int, int], generator: np.random.Generator) -> Box:
    """Choose left, top, right and bottom of a part of an image of (width, height), for training.

    Up to ten parts are drawn until one fits; after that it is the centre, as much as the aspects allow.
    """
    width, height = size
    for _ in range(ATTEMPTS):
        area = width * height * generator.uniform(*AREA)
        aspect = math.exp(generator.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def centre(image: "Image") -> "Image":
    """Scale the shorter side to 256 and cut out the centre of 224x224."""
    width, height = image.size
    scale = SHORTER_SIDE / min(width, height)
    image = image.resize((max(SHORTER_SIDE, int(width * scale)), max(SHORTER_SIDE, int(height * scale))), BILINEAR)
    left, top = round((image.width - PHOTO_SIZE) / 2), round((image.height - PHOTO_SIZE) / 2)
    return image.crop((left, top, left + PHOTO_SIZE, top + PHOTO_SIZE))
