"""Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017."""

from dataclasses import dataclass

from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.kernels.largest import largest_magnitudes
from resireduce.share import share


@dataclass(frozen=True)
class TopK(Selecting, SparseCompressor):
    """Sends the k elements of largest magnitude, k = max(1, floor(density x n))."""

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the k largest magnitudes: int64, ascending."""
        return largest_magnitudes(flat, share(self.density, flat.numel()))
