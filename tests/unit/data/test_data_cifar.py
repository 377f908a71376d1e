"""CIFAR from its archives: what is read, and that no pickle is executed."""

import os
import pickle

import numpy as np
import pytest

from benchmarks.data.cifar import CIFAR10, CIFAR100
from resireduce.errors import ConfigError
from tests.published import prepared, python2_pickle, tar_gz, unpublished, write

SMALL10, SMALL100 = unpublished(CIFAR10), unpublished(CIFAR100)


def batch(count: int, seed: int, classes: int = 10, key: str = "labels") -> bytes:
    generator = np.random.default_rng(seed)
    values = {
        "batch_label": f"batch {seed}",
        key: [int(label) for label in generator.integers(0, classes, count)],
        "data": generator.integers(0, 256, (count, 3072), dtype=np.uint8),
        "filenames": [f"leptodactylus_s_{place}.png" for place in range(count)],
    }
    if key == "fine_labels":
        values["coarse_labels"] = [label // 5 for label in values[key]]
    return python2_pickle(values)


def archive10(tmp_path, **change):
    names = [f"data_batch_{number}" for number in range(1, 6)]
    made = {name: batch(3, seed) for seed, name in enumerate([*names, "test_batch"])} | change
    members = {f"cifar-10-batches-py/{name}": content for name, content in made.items()}
    members |= {"cifar-10-batches-py/batches.meta": b"(dp1\n.", "cifar-10-batches-py/readme.html": b"<html>"}
    return write(tmp_path / "from", {"cifar-10-python.tar.gz": tar_gz(members)})


def test_cifar10_is_in_the_published_order(tmp_path):
    result = prepared("cifar10", SMALL10, archive10(tmp_path), tmp_path / "root")
    images, labels = (np.load(result.folder / f"train_{what}.npy") for what in ("images", "labels"))
    assert (images.shape, images.dtype, labels.dtype) == ((15, 3, 32, 32), np.uint8, np.int64)
    third = pickle.loads(batch(3, seed=1), encoding="bytes")
    assert labels[3:6].tolist() == third[b"labels"]
    assert images[3, 0, 0].tolist() == third[b"data"][0, :32].tolist(), "the first row of red"
    assert images[3, 2, 31].tolist() == third[b"data"][0, -32:].tolist(), "the last row of blue"
    assert np.load(result.folder / "test_images.npy").shape == (3, 3, 32, 32)
    assert result.manifest["train_count"] == 15


def test_cifar100_has_fine_labels(tmp_path):
    made = {"train": batch(15, 0, 100, "fine_labels"), "test": batch(3, 1, 100, "fine_labels")}
    packed = tar_gz({f"cifar-100-python/{name}": content for name, content in made.items()})
    result = prepared("cifar100", SMALL100, write(tmp_path / "from", {"cifar-100-python.tar.gz": packed}), tmp_path)
    labels = np.load(result.folder / "train_labels.npy")
    assert labels.tolist() == pickle.loads(made["train"], encoding="bytes")[b"fine_labels"]
    assert labels.max() > 20


@pytest.mark.parametrize(
    "command",
    [
        "cposix\nmkdir\n(V{}\ntR.",
        "(dS'labels'\ncos\nmkdir\n(V{}\ntRs.",
        "c__builtin__\neval\n(V__import__('os').mkdir('{}')\ntR.",
        "cnumpy.core.multiarray\n_reconstruct\n0cos\nmkdir\n(V{}\ntR.",
    ],
)
def test_nothing_in_a_pickle_is_executed(tmp_path, command):
    marker = tmp_path / "executed"
    content = command.format(marker).encode()
    with pytest.raises(ConfigError, match=r"cifar10: a pickle names .*, which CIFAR's do not; nothing was executed$"):
        prepared("cifar10", SMALL10, archive10(tmp_path, test_batch=content), tmp_path / "root")
    assert not marker.exists()
    assert os.listdir(tmp_path / "root") == [], "nothing half done is left"
    pickle.loads(content)
    assert marker.exists(), "it does something where it is obeyed"
