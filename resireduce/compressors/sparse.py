"""The common base of compressors that send some elements as values and indices."""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.kernels.on_gpu import in_triton
from resireduce.kernels.sent import LAYOUT, add_sent_
from resireduce.payload import Payload

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

    @property
    def divides(self) -> bool:
        """Whether payloads are packed and added in parts by the methods of this class."""
        here, own = SparseCompressor, type(self)
        return self.cuts and own.packed is here.packed and own.add_part_ is here.add_part_

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
        if self._added(dense, payload, 0, scale, whole=True):
            return dense
        values, indices = payload.parts()
        dense.view(-1).index_add_(0, indices, values.to(dense.dtype), alpha=scale)
        return dense

    def add_part_(self, part: Tensor, payload: Payload, start: int, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values whose index lies in 1-D `part`, which begins at `start`; return `part`.

        Without storage these are unknown: indices are assumed to be spread evenly.
        """
        if self._added(part, payload, start, scale, whole=False):
            return part
        values, indices = payload.parts()
        if indices.is_meta:
            chosen = slice(-(-indices.numel() * part.numel() // payload.shape.numel()))
        else:
            borders = torch.tensor([start, start + part.numel()], dtype=indices.dtype, device=indices.device)
            chosen = slice(*torch.searchsorted(indices, borders).tolist())
        return part.index_add_(0, indices[chosen] - start, values[chosen].to(part.dtype), alpha=scale)

    def _added(self, part: Tensor, payload: Payload, start: int, scale: float, whole: bool) -> bool:
        """Whether compiled code has added what lies in `part`, or `whole`: only float32, as `packed` lays it out."""
        (values, count), (indices, _) = payload.layout
        return (values, indices) == LAYOUT and add_sent_(part, start, payload.buffer, count, scale, whole)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`; return it. Zeros, or rounding errors, are left there."""
        if self.half:
            return self.add_(grad, payload, scale=-1.0)
        grad.view(-1).index_fill_(0, self.sent_indices(payload), 0.0)
        return grad


class SentParts:
    """The payload of a gradient that comes in parts, from the first to the last.

    Args:
        indices: flat indices of all that is sent: int64, ascending.
        like: has the gradient's shape and dtype.
    """

    def __init__(self, indices: Tensor, like: Tensor):
        self._indices, self._like = indices, like
        self._values: list[Tensor] = []

    def take_out(self, part: Tensor, start: int, compressor: Compressor) -> Tensor:
        """Return contiguous `part`, the elements from `start` on, without what is sent of it, in its memory.

        compressor: a SparseCompressor that sends equally many elements on all ranks.
        """
        assert isinstance(compressor, SparseCompressor) and compressor.equal_sizes
        indices = self._between(start, start + part.numel()) - start
        if compressor.exact and compressor.divides and in_triton(part, indices):
            from resireduce.kernels.gpu.take_out import take_out_

            self._values.append(take_out_(part.view(-1), indices))
            return part
        payload = compressor.packed(part, indices)
        self._values.append(payload.parts()[0].clone())
        return compressor.error_(part, payload)

    def payload(self) -> Payload:
        """Return the payload, as `SparseCompressor.packed` makes it of the whole, once all parts have come."""
        return Payload.pack(torch.cat(self._values), narrowed(self._indices, self._like), like=self._like)

    def _between(self, start: int, stop: int) -> Tensor:
        """Return the indices from `start` to `stop`; without storage they are assumed to be spread evenly."""
        if self._indices.is_meta:
            count, numel = self._indices.numel(), self._like.numel()
            return self._indices[count * start // numel : count * stop // numel]
        borders = torch.tensor([start, stop], device=self._indices.device)
        return self._indices[slice(*torch.searchsorted(self._indices, borders).tolist())]


def narrowed(indices: Tensor, like: Tensor) -> Tensor:
    """Return flat `indices` of a tensor `like` this one as they travel: int32, and int64 from 2^31 elements on."""
    return indices.to(torch.int32 if like.numel() <= torch.iinfo(torch.int32).max else torch.int64)
