"""CIFAR from its archives: what is read, what is refused, and that no pickle is executed."""

import os
import pickle
import re

import numpy as np
import pytest

from benchmarks.data.cifar import CIFAR10, CIFAR100, read_pickle
from resireduce.errors import ConfigError
from tests.published import prepared, python2_pickle, tar_gz, unpublished, write

SMALL10 = unpublished(CIFAR10, train_count=15, test_count=3)
SMALL100 = unpublished(CIFAR100, train_count=15, test_count=3)


def batch(count: int, seed: int, classes: int = 10, key: str = "labels", **change) -> bytes:
    generator = np.random.default_rng(seed)
    values = {
        "batch_label": f"batch {seed}",
        key: [int(label) for label in generator.integers(0, classes, count)],
        "data": generator.integers(0, 256, (count, 3072), dtype=np.uint8),
        "filenames": [f"leptodactylus_s_{place}.png" for place in range(count)],
    }
    if key == "fine_labels":
        values["coarse_labels"] = [label // 5 for label in values[key]]
    return python2_pickle({key: value for key, value in (values | change).items() if value is not None})


def members10(**change) -> dict[str, bytes]:
    names = [f"data_batch_{number}" for number in range(1, 6)]
    made = {name: batch(3, seed) for seed, name in enumerate([*names, "test_batch"])} | change
    folder = {f"cifar-10-batches-py/{name}": content for name, content in made.items()}
    return folder | {"cifar-10-batches-py/batches.meta": b"(dp1\n.", "cifar-10-batches-py/readme.html": b"<html>"}


def archive10(tmp_path, **change):
    return write(tmp_path / "from", {"cifar-10-python.tar.gz": tar_gz(members10(**change))})


@pytest.mark.parametrize("form", ["archive", "folder", "inner folder", "file"])
def test_cifar10_in_every_form(tmp_path, form):
    source = archive10(tmp_path)
    if form == "file":
        source /= "cifar-10-python.tar.gz"
    elif form != "archive":
        source = write(tmp_path / "unpacked", members10())
        source = source / "cifar-10-batches-py" if form == "inner folder" else source
    result = prepared("cifar10", SMALL10, source, tmp_path / "root")
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
    ("change", "message"),
    [
        ({"test_batch": batch(3, 0, labels=None)}, "test_batch: 'labels' is no list of 3 labels"),
        ({"test_batch": batch(3, 0, labels=[0, 1, 10])}, "test_batch: label 10 is not allowed; allowed: 0 to 9"),
        ({"test_batch": batch(3, 0, data=np.zeros((3, 3073), np.uint8))}, "'data' is no array of 3072 bytes"),
        ({"test_batch": batch(4, 0)}, "test_batch: 4 images, published are 3"),
        ({"data_batch_2": batch(3, 0)[:500]}, "data_batch_2 is no pickle that CIFAR could be"),
        (tar_gz(members10())[:3000], "cifar-10-python.tar.gz is damaged: "),
        (b"no archive", "cifar-10-python.tar.gz is damaged: "),
        (tar_gz({name: b"" for name in members10() if "batch_3" not in name}), "no member 'cifar-10-batches-py/data_b"),
    ],
)
def test_what_is_bad_is_named_in_one_line(tmp_path, change, message):
    packed = change if isinstance(change, bytes) else tar_gz(members10(**change))
    source = write(tmp_path / "from", {"cifar-10-python.tar.gz": packed})
    with pytest.raises(ConfigError, match=f"^data: cifar10: .*{re.escape(message)}") as caught:
        prepared("cifar10", SMALL10, source, tmp_path / "root")
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path / "root") == [], "nothing half done is left"


def commands(folder) -> list[bytes]:
    """Pickles that make the folder when they are read by a reader that obeys them."""
    path = str(folder).encode()
    return [
        b"cposix\nmkdir\n(V" + path + b"\ntR.",
        b"cos\nmkdir\n(V" + path + b"\ntR.",
        b"(dS'labels'\ncos\nmkdir\n(V" + path + b"\ntRs.",
        b"c__builtin__\neval\n(V__import__('os').mkdir('" + path + b"')\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n0cos\nmkdir\n(V" + path + b"\ntR.",
    ]


@pytest.mark.parametrize("kind", range(5))
def test_nothing_in_a_pickle_is_executed(tmp_path, kind):
    marker = tmp_path / "executed"
    content = commands(marker)[kind]
    with pytest.raises(ConfigError, match=r"test_batch is .*: it names .*, which CIFAR's do not; nothing was executed"):
        prepared("cifar10", SMALL10, archive10(tmp_path, test_batch=content), tmp_path / "root", unverified=True)
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists(), "it does something where it is obeyed"


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nndarray\n(I1000000000000\ntR.",  # a huge array
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I9\ntcnumpy\ndtype\nI0\nS'xx'\ntb.",
        b"cnumpy\n__builtins__\n.",
    ],
)
def test_odd_pickles_are_refused_in_one_line(content):
    with pytest.raises(ValueError, match=r"^file (is no pickle|holds an object)") as caught:
        read_pickle(content, "file")
    assert "\n" not in str(caught.value)
