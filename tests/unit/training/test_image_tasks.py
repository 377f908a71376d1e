"""CIFAR and ImageNet: prepared files good and bad, augmentation against Pillow's, Top-1 by samples and by batches."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks.training.tasks.images import VARIANTS, Cifar, ImageNet, look_up, random_box
from benchmarks.training.tasks.task import Setting
from resireduce.errors import ConfigError
from tests.prepared import save_cifar, save_prepared


class Guess(nn.Module):
    """A fixed random linear map of the pixels."""

    def __init__(self, pixels: int = 3 * 32 * 32, classes: int = 100) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(pixels, classes, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return x.flatten(1) @ self.weight


# CIFAR


@pytest.mark.parametrize("name", VARIANTS)
def test_test_images_are_normalised_and_not_augmented(tmp_path, name):
    save_cifar(tmp_path, name)
    task = Cifar(Setting(data=name, root=tmp_path))
    batch = task.source.held_out_batch(range(3, 9, 2))
    raw = np.load(tmp_path / name / "test_images.npy")[[3, 5, 7]].astype(float)
    mean, std = (np.array(part)[:, None, None] for part in (VARIANTS[name].mean, VARIANTS[name].std))
    assert np.allclose(batch["images"].numpy(), (raw / 255 - mean) / std, atol=1e-5)
    assert batch["labels"].tolist() == np.load(tmp_path / name / "test_labels.npy")[[3, 5, 7]].tolist()
    assert (task.metric, len(task)) == ("top1", 40)
    assert task.data_hash == json.loads((tmp_path / name / "manifest.json").read_text())["hash"]


@pytest.mark.parametrize(
    ("flip", "top", "left", "degrees"), [(False, 0, 8, 0), (True, 7, 3, 0), (False, 4, 4, -7.3), (False, 4, 4, 14.9)]
)
def test_crop_with_padding_comes_before_the_flip_and_rotation_is_pillows(flip, top, left, degrees):
    y, x = np.mgrid[:32, :32]
    image = np.stack([255 * (x / 31), 255 * (y / 31), 127 + 120 * np.sin(x / 5)]).astype(np.uint8)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))[:, top : top + 32, left : left + 32]
    flipped = padded[:, :, ::-1] if flip else padded
    expected = np.array(Image.fromarray(flipped.transpose(1, 2, 0)).rotate(degrees)).transpose(2, 0, 1)
    found = look_up(image[None], np.array([[top, left]]), np.array([flip]), np.array([float(degrees)]))[0]
    # Pillow computes in 16.16 fixed point, so a pixel between two may be the other one.
    assert (found == expected).mean() > (0.98 if degrees else 0.9999)


def test_augmentation_depends_on_seed_step_and_index_alone(tmp_path):
    save_cifar(tmp_path)

    def images(indices: list[int], step: int, seed: int = 0) -> torch.Tensor:
        task = Cifar(Setting(data="cifar100", root=tmp_path, seed=seed))
        return task.batch(torch.tensor(indices), step)["images"]

    together = images([5, 9, 17], 3)
    assert torch.equal(together[1:2], images([9], 3)), "another rank gets the same image"
    assert not torch.equal(together, images([5, 9, 17], 4))
    assert not torch.equal(together, images([5, 9, 17], 3, seed=1))


def test_top1_counts_each_image_once_and_batch_means_give_small_batches_as_much_weight(tmp_path):
    labels = np.zeros(70, dtype=np.int64)
    labels[[64, 66]] = 1  # rank 0's second batch of three: 64, 66, 68
    save_cifar(tmp_path, test=70, test_labels=labels)
    always_0 = Guess()
    always_0.weight.data.zero_()
    plain, released = (
        Cifar(Setting(data="cifar100", root=tmp_path, released=frozenset(defects)))
        for defects in ((), ("batch-means",))
    )
    for world_size in (1, 2, 5, 71):
        sums = sum(plain.evaluate(always_0, rank, world_size) for rank in range(world_size))
        assert sums[1] == 70 and plain.metrics_from(sums)["top1"] == pytest.approx(100 * 68 / 70)
    sums = sum(released.evaluate(always_0, rank, 2) for rank in range(2))
    assert released.metrics_from(sums)["top1"] == pytest.approx(100 * (1 + 1 / 3) / 2)


# ImageNet


@pytest.fixture
def photographs(tmp_path):
    """Root of a prepared list of six images in two classes, and their folder."""
    source = tmp_path / "source"
    listed = {"folder": str(source), "classes": ["n01", "n02"], "train": [], "val": []}
    generator = np.random.default_rng(0)
    for number, (width, height, mode) in enumerate(
        [(300, 260, "RGB"), (500, 231, "RGB"), (230, 900, "L"), (64, 64, "CMYK"), (1, 300, "RGB"), (256, 256, "RGB")]
    ):
        part, label = ("train", "val")[number % 2], number % 3 % 2
        path = f"{part}/{listed['classes'][label]}/{number}.jpeg"
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(generator.integers(0, 255, (8, 8, 3)), np.ones((40, 70, 1))).astype(np.uint8)
        Image.fromarray(pixels).resize((width, height)).convert(mode).save(source / path)
        listed[part].append([path, label])
    save_prepared("imagenet", tmp_path, {"images.json": json.dumps(listed).encode()})
    return tmp_path, source


def test_photographs_of_any_shape_become_batches_and_one_that_cannot_be_decoded_is_named(photographs):
    root, source = photographs
    task = ImageNet(Setting(data="imagenet", root=root))
    batch = task.batch(torch.tensor([2, 0, 1]), step=5)
    assert batch["images"].shape == (3, 3, 224, 224) and math.isfinite(batch["images"].sum())
    assert batch["labels"].tolist() == [task.source.train[index][1] for index in (2, 0, 1)]
    assert torch.equal(batch["images"][1], task.batch(torch.tensor([0]), step=5)["images"][0])
    assert not torch.equal(batch["images"][1], task.batch(torch.tensor([0]), step=6)["images"][0])
    assert task.evaluate(Guess(3 * 224 * 224, 2), 0, 1)[1] == 3
    (source / task.source.train[0][0]).write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"0\.jpeg cannot be decoded"):
        task.batch(torch.tensor([0]))


def test_validation_is_the_centre_of_the_image_scaled(photographs):
    root, source = photographs
    task = ImageNet(Setting(data="imagenet", root=root))
    index = next(number for number, (path, _) in enumerate(task.source.val) if path.endswith("5.jpeg"))
    found = task.source.held_out_batch(range(index, index + 1))["images"][0]
    pixels = np.array(Image.open(source / task.source.val[index][0]), dtype=np.float32)[16:240, 16:240]
    expected = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    assert np.allclose(found.permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("size", [(640, 480), (10, 2000), (1, 1)])
def test_parts_lie_in_the_image_and_have_the_right_size_and_aspect(size):
    generator = np.random.default_rng(1)
    for _ in range(200):
        left, top, right, bottom = random_box(size, generator)
        width, height = right - left, bottom - top
        assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
        assert size != (640, 480) or (0.078 < width * height / (640 * 480) <= 1 and 0.74 < width / height < 1.35)
