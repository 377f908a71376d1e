"""Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.kernels.largest import LargestOfParts, largest_magnitudes, largest_of_sum_
from resireduce.payload import Payload
from resireduce.share import share


@dataclass(frozen=True)
class TopK(Selecting, SparseCompressor):
    """Sends the k elements of largest magnitude, k = max(1, floor(density x n))."""

    def selects_from_parts(self, like: Tensor) -> bool:
        """Whether a gradient is not float64 on a GPU, whose keys have no room for places; False for subclasses."""
        exact = like.device.type in ("cpu", "meta") or (like.dtype != torch.float64 and like.numel() <= 1 << 32)
        return type(self) is TopK and exact and share(self.density, like.numel()) < like.numel()

    def selection(self, like: Tensor) -> LargestOfParts:
        """Return what selects the k largest magnitudes of the parts of a gradient `like` this one."""
        return LargestOfParts(like, share(self.density, like.numel()))

    @property
    def adds(self) -> bool:
        """Whether `select` is the one here: False for subclasses."""
        return type(self) is TopK

    def compress_sum_(self, dense: Tensor, added: Tensor | None, check: bool = False) -> Payload:
        """Add `added`, if any, to `dense`, in place; return the payload of its largest magnitudes, in one pass.

        check: FloatingPointError is raised if the sum is not finite.
        """
        k, flat = share(self.density, dense.numel()), None if added is None else added.view(-1)
        return self.packed(dense, largest_of_sum_(dense.view(-1), flat, k, check))

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the k largest magnitudes: int64, ascending."""
        return largest_magnitudes(flat, share(self.density, flat.numel()))
