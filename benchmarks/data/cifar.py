"""CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009). Imports no torch.

Prepared: `train_images.npy`, `test_images.npy`, uint8 (n, 3, 32, 32), channels red, green, blue; `train_labels.npy`,
`test_labels.npy`, int64 (n,), for CIFAR-100 the fine labels. All are in the published order.
"""

import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct
from numpy.typing import NDArray

from benchmarks.data.dataset import Dataset, Report, first_line, forms_of

SIDE = 32
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""What CIFAR's pickles name, of NumPy; any other name is refused (documentation of pickle, "Restricting Globals")."""


@dataclass(frozen=True, kw_only=True)
class Cifar(Dataset):
    """One of the two data sets, from its archive for Python or from the unpacked files."""

    train: tuple[str, ...]
    """Names of the files with training images, in order."""
    test: tuple[str, ...]
    labels: bytes
    """Key of the labels."""
    classes: int
    train_count: int = 50_000
    test_count: int = 10_000

    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write images and labels."""
        contents = self._contents(files)
        for part, names, count in (("train", self.train, self.train_count), ("test", self.test, self.test_count)):
            parts = [self._read(contents[name], name) for name in names]
            images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            if len(labels) != count:
                raise ValueError(f"{', '.join(names)}: {len(labels):,} images, published are {count:,}")
            np.save(target / f"{part}_images.npy", images.reshape(-1, 3, SIDE, SIDE))
            np.save(target / f"{part}_labels.npy", labels)
        return {"train_count": self.train_count, "test_count": self.test_count, "classes": self.classes}

    def _contents(self, files: Mapping[str, Path]) -> dict[str, bytes]:
        names = (*self.train, *self.test)
        if set(names) <= set(files):
            return {name: files[name].read_bytes() for name in names}
        (archive,) = files.values()
        return read_tar(archive, {name: f"{self.folders[0]}/{name}" for name in names})

    def _read(self, content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        values = read_pickle(content, name)
        images, labels = values.get(b"data"), values.get(self.labels)
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3 * SIDE * SIDE,):
            raise ValueError(f"{name}: 'data' is no array of {3 * SIDE * SIDE} bytes for each image")
        if not isinstance(labels, list) or len(labels) != len(images):
            raise ValueError(f"{name}: {self.labels.decode()!r} is no list of {len(images)} labels, one for each image")
        wrong = [label for label in labels if type(label) is not int or not 0 <= label < self.classes]
        if wrong:
            raise ValueError(f"{name}: label {wrong[0]!r} is not allowed; allowed: 0 to {self.classes - 1}")
        return images, np.array(labels, dtype=np.int64)


def read_tar(path: Path, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """Read members of a gzip-compressed tar archive, by the names for which they are `wanted`; nothing is unpacked.

    Raises ValueError, one line, for an archive that is damaged or lacks one.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            files = {member.name: member for member in archive if member.isfile()}
            if missing := [member for member in wanted.values() if member not in files]:
                raise ValueError(f"{path.name} has no member {missing[0]!r}; it is not as published")
            return {name: archive.extractfile(files[member]).read() for name, member in wanted.items()}  # type: ignore[union-attr]
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which CIFAR's do not; nothing was executed"
            ) from None


def read_pickle(content: bytes, name: str) -> dict[bytes, Any]:
    """Read a dictionary of plain values and arrays, as Python 2 wrote it; nothing but NumPy's arrays can be made.

    Raises ValueError, one line with the file's `name`, for anything else.
    """
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a pickle can make its reader raise anything
        raise ValueError(f"{name} is no pickle that CIFAR could be: {first_line(error)}") from None
    if type(value) is not dict:
        raise ValueError(f"{name} holds an object of type {type(value).__name__}, allowed is a dictionary")
    return value


ADDRESS = "https://www.cs.toronto.edu/~kriz/"
TERMS = "free to use; cite the report"
FILES_10 = """
cifar-10-python.tar.gz 170_498_071 md5:c58f30108f718f92721af3b95e74349a

data_batch_1 - md5:c99cafc152244af753f735de768cd75f
data_batch_2 - md5:d4bba439e000b95fd0a9bffe97cbabec
data_batch_3 - md5:54ebc095f3ab1f0389bbae665268c751
data_batch_4 - md5:634d18415352ddfa80567beed471001a
data_batch_5 - md5:482c414d41f54cd18b22e5b47cb7c3cb
test_batch - md5:40351d587109b95175f43aff81a1287e
"""
FILES_100 = """
cifar-100-python.tar.gz 169_001_437 md5:eb9058c3a382ffc7106e4002c42a8d85

train - md5:16019d7e3df5f24257cddd939b257f8d
test - md5:f0ef6b0ae62326f3e7ffdfab6717acfc
"""

CIFAR10 = Cifar(
    title="CIFAR-10: 60,000 images of 32x32 pixels in 10 classes",
    terms=TERMS,
    address=ADDRESS,
    forms=forms_of(FILES_10),
    folders=("cifar-10-batches-py",),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    labels=b"labels",
    classes=10,
)

CIFAR100 = Cifar(
    title="CIFAR-100: 60,000 images of 32x32 pixels in 100 classes",
    terms=TERMS,
    address=ADDRESS,
    forms=forms_of(FILES_100),
    folders=("cifar-100-python",),
    train=("train",),
    test=("test",),
    labels=b"fine_labels",
    classes=100,
)
