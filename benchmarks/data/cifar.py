"""CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009). Imports no torch.

Prepared: `train_images.npy`, `test_images.npy`, uint8 (n, 3, 32, 32), channels red, green, blue; `train_labels.npy`,
`test_labels.npy`, int64 (n,), for CIFAR-100 the fine labels. All are in the published order.
"""

import io
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct

from benchmarks.data.dataset import Dataset, Report, files_of

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
    """One of the two data sets, from its archive for Python."""

    train: tuple[str, ...]
    """Names of the archive's files with training images, in order."""
    test: tuple[str, ...]
    labels: bytes
    """Key of the labels."""

    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write images and labels."""
        values, counts = {}, {}
        with tarfile.open(source / self.files[0].name, "r:gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in (*self.train, *self.test):
                    values[name] = read_pickle(archive.extractfile(member).read())  # type: ignore[union-attr]
        for part, names in (("train", self.train), ("test", self.test)):
            images = np.concatenate([values[name][b"data"] for name in names]).reshape(-1, 3, SIDE, SIDE)
            labels = np.concatenate([np.array(values[name][self.labels], dtype=np.int64) for name in names])
            np.save(target / f"{part}_images.npy", images)
            np.save(target / f"{part}_labels.npy", labels)
            counts[f"{part}_count"] = len(labels)
        return counts


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise ValueError(f"a pickle names {module}.{name}, which CIFAR's do not; nothing was executed") from None


def read_pickle(content: bytes) -> dict[bytes, Any]:
    """Read plain values and arrays, as Python 2 wrote them. Raises ValueError if anything else is named."""
    values: dict[bytes, Any] = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    return values


ADDRESS = "https://www.cs.toronto.edu/~kriz/"
TERMS = "free to use; cite the report"

CIFAR10 = Cifar(
    title="CIFAR-10: 60,000 images of 32x32 pixels in 10 classes",
    terms=TERMS,
    address=ADDRESS,
    files=files_of("cifar-10-python.tar.gz 170_498_071 md5:c58f30108f718f92721af3b95e74349a"),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    labels=b"labels",
)

CIFAR100 = Cifar(
    title="CIFAR-100: 60,000 images of 32x32 pixels in 100 classes",
    terms=TERMS,
    address=ADDRESS,
    files=files_of("cifar-100-python.tar.gz 169_001_437 md5:eb9058c3a382ffc7106e4002c42a8d85"),
    train=("train",),
    test=("test",),
    labels=b"fine_labels",
)
