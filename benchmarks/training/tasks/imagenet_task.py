"""ImageNet (Russakovsky et al., 2015), or any folder of images in folders of classes; metric: Top-1 accuracy.

Training images: a random part of 8 to 100 % of the area, of an aspect from 3/4 to 4/3, scaled to 224x224, and a flip in
half of the cases. Validation: the shorter side scaled to 256, the centre 224x224. All bilinear.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from benchmarks.core.files import load_json
from benchmarks.core.prepared import Prepared, open_prepared
from benchmarks.core.provenance import cores
from benchmarks.training.tasks.task import (
    Batch,
    ImageClassification,
    Setting,
    Source,
    damaged,
    draws,
    synthetic_images,
)
from resireduce.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

CLASSES = 1000
SIZE = 224
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
            synthetic_images(setting, CLASSES, SIZE)
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
        """Raises ConfigError if the images are not where they were when the list was made."""
        self.data_hash, self._seed = prepared.hash, seed
        try:
            listed = load_json(prepared.folder / "images.json")
            self._folder, self.train, self.val = Path(listed["folder"]), listed["train"], listed["val"]
            labels = {label for _, label in (*self.train, *self.val)}
            if not labels <= set(range(CLASSES)):
                raise ValueError(f"its classes are not all from 0 to {CLASSES - 1}")
        except (ValueError, LookupError, TypeError) as error:
            raise damaged(prepared, "images.json", error) from None
        if not self._folder.is_dir():
            raise ConfigError(
                f"data: the images are no longer in {self._folder}; put them back, or prepare 'imagenet' again"
            )
        self.samples, self.held_out = len(self.train), len(self.val)
        self._mean, self._std = (torch.tensor(each).view(3, 1, 1) for each in (mean, std))
        self._pool = ThreadPoolExecutor(THREADS)

    def batch(self, indices: Tensor, step: int) -> Batch:
        """Return images (batch, 3, 224, 224), augmented, and labels (batch,)."""

        def augmented(index: int) -> Tensor:
            generator = draws(self._seed, step, index)
            image = self._open(self.train[index][0])
            image = image.crop(random_box(image.size, generator)).resize((SIZE, SIZE), BILINEAR)
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
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.float().div_(255).sub_(self._mean).div_(self._std)


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
    left, top = round((image.width - SIZE) / 2), round((image.height - SIZE) / 2)
    return image.crop((left, top, left + SIZE, top + SIZE))
