"""Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.kernels.largest import largest_magnitudes, largest_of_sum_
from resireduce.kernels.on_gpu import in_triton
from resireduce.kernels.packed_largest import Addend, packed_largest
from resireduce.payload import Payload, unfilled
from resireduce.share import share


@dataclass(frozen=True)
class TopK(Selecting, SparseCompressor):
    """Sends the k elements of largest magnitude, k = max(1, floor(density x n))."""

    @property
    def adds(self) -> bool:
        """Whether `select` is the one here: False for subclasses."""
        return type(self) is TopK

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Do as all sparse compressors; on a CPU by one call of compiled code, where that is faster."""
        k = self._count(grad)
        packed = None if self.half or not self.adds else packed_largest(grad.view(-1), k)
        return super().compress(grad, name, step) if packed is None else self._payload(grad, packed, k)

    def take_from_sum_(self, dense: Tensor, added: Addend | None, check: bool = False) -> Payload:
        """Add `added`, if any, to `dense`, in place; take out its largest magnitudes, and return their payload.

        Each element is read once. check: FloatingPointError is raised if the sum is not finite.
        """
        k, flat, addend = self._count(dense), dense.view(-1), added.view(-1) if isinstance(added, Tensor) else added
        packed = None if self.half else packed_largest(flat, k, addend, takes=True, check=check)
        if packed is not None:
            return self._payload(dense, packed, k)
        if not (addend is None or isinstance(addend, Tensor)):
            addend.add_to_(dense)
            addend = None
        if not (self.half or check) and k < flat.numel() and in_triton(flat, flat if addend is None else addend):
            return self._taken_on_gpu(dense, k, addend)
        payload = self.packed(dense, largest_of_sum_(flat, addend, k, check))
        self.error_(dense, payload)
        return payload

    def _taken_on_gpu(self, dense: Tensor, k: int, added: Tensor | None) -> Payload:
        """Do as `take_from_sum_`, with kernels in Triton, which write the payload itself."""
        from resireduce.kernels.gpu.select import take_largest_

        layout = (dense.dtype, k), (torch.int32, k)
        payload = Payload(unfilled(layout, dense.device), layout, dense.shape, dense.dtype)
        values, places = payload.parts()
        take_largest_(dense.view(-1), k, (values, places), added)
        return payload

    def _count(self, grad: Tensor) -> int:
        return share(self.density, grad.numel())

    def _payload(self, grad: Tensor, packed: Tensor, k: int) -> Payload:
        return Payload(packed, ((torch.float32, k), (torch.int32, k)), grad.shape, grad.dtype)

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the k largest magnitudes: int64, ascending."""
        return largest_magnitudes(flat, self._count(flat))
