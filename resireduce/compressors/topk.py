"""Top-k sparsification, and what all compressors share that send values and indices."""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor, Selecting
from resireduce.core.payload import Payload, unfilled
from resireduce.kernels.on_gpu import in_triton
from resireduce.kernels.packed_largest import LAYOUT, Addend, add_sent_, packed_largest
from resireduce.kernels.selection import largest_magnitudes, largest_of_sum_
from resireduce.pieces import share

# --- The common base of compressors that send some elements as values and indices ---


LARGEST_HALF = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class SparseCompressor(Compressor):
    """Sends some elements, in the gradient's dtype or in half precision, with int32 indices (int64 from 2^31 on)."""

    half: bool = field(default=False, kw_only=True)
    """Whether values travel as float16: 6 bytes per element. The rounding error stays in the residual."""

    @property
    def exact(self) -> bool:
        """Whether the values are the gradient's own: true unless they are rounded to half precision."""
        return not self.half

    @abstractmethod
    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the indices (int64, unique, ascending) of 1-D `flat` to send; `name`, `step`: as in `compress`."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the selected elements, values and int32 indices: 8 bytes each in float32."""
        return self.packed(grad, self.select(grad.view(-1), name, step))

    def packed(self, grad: Tensor, indices: Tensor) -> Payload:
        """Return the payload of the elements of contiguous `grad` at the flat `indices` (int64, unique, ascending)."""
        flat = grad.view(-1)
        values = flat.index_select(0, indices)
        if self.half:
            wide = values.to(torch.promote_types(values.dtype, torch.float32))  # bfloat16 has no such number
            values = wide.clamp_(-LARGEST_HALF, LARGEST_HALF).to(torch.float16)
            if not (self.equal_sizes or values.is_meta):  # what rounding makes zero need not travel
                kept = values.nonzero().view(-1)
                values, indices = values[kept], indices[kept]
        return Payload.pack(values, narrowed(indices, grad), like=grad, ragged=not self.equal_sizes)

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D, int64, ascending."""
        return payload.parts()[1].long()

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values to their places in `dense`, in any order, as no index repeats; return `dense`."""
        (dtype, count), (index_dtype, _) = payload.layout  # compiled code takes float32, as `packed` lays it out
        if (dtype, index_dtype) == LAYOUT and add_sent_(dense, payload.buffer, count, scale):
            return dense
        values, indices = payload.parts()
        dense.view(-1).index_add_(0, indices, values.to(dense.dtype), alpha=scale)
        return dense

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`; return it. Zeros, or rounding errors, are left there."""
        if self.half:
            return self.add_(grad, payload, scale=-1.0)
        grad.view(-1).index_fill_(0, self.sent_indices(payload), 0.0)
        return grad


def narrowed(indices: Tensor, like: Tensor) -> Tensor:
    """Return flat `indices` of a tensor `like` this one as they travel: int32, and int64 from 2^31 elements on."""
    return indices.to(torch.int32 if like.numel() <= torch.iinfo(torch.int32).max else torch.int64)


@dataclass(frozen=True)
class TopK(Selecting, SparseCompressor):
    """Sends the k elements of largest magnitude, k = max(1, floor(density x n)).

    Source: Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
    """

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
        from resireduce.kernels.gpu.bucket import compress_topk_

        layout = (dense.dtype, k), (torch.int32, k)
        payload = Payload(unfilled(layout, dense.device), layout, dense.shape, dense.dtype)
        compress_topk_([added], [dense], [k], payload.buffer)
        return payload

    def _count(self, grad: Tensor) -> int:
        return share(self.density, grad.numel())

    def _payload(self, grad: Tensor, packed: Tensor, k: int) -> Payload:
        return Payload(packed, ((torch.float32, k), (torch.int32, k)), grad.shape, grad.dtype)

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the k largest magnitudes: int64, ascending."""
        return largest_magnitudes(flat, self._count(flat))
