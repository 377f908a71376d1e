"""Values, and the gaps between indices in Golomb-Rice code: Sattler et al., "Sparse binary compression: towards
distributed deep learning with minimal communication", IJCNN 2019, which has Golomb's codes; here Rice's. And what all
compressors share that send values and indices."""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.core.messages import Payload, Ragged
from resireduce.kernels.codes import BYTE, pack_bits, pack_codes, unpack_bits, unpack_codes
from resireduce.kernels.ops import add_sent_each_, index_dtype

# --- Indices as gaps in Golomb-Rice codes: Rice and Plaunt, IEEE Trans. Commun. 1971; Golomb, IEEE Trans. Inf. Theory
# 1966, shows that they suit gaps between events that are equally probable. ---
#
# A gap g is the number of elements that are skipped. Its lower `width` bits are stored as they are; the rest, g >>
# width, is stored as that many zeros and a one. The ones thus mark the ends of gaps, which one search finds.


def encode(indices: Tensor, numel: int) -> tuple[int, Tensor]:
    """Return the width and the bytes, 1-D uint8, of 1-D int64 `indices`: unique, ascending, below `numel`.

    The width is the one that takes fewest bits. Without storage it is that for equal gaps, and the number of bytes is
    the largest possible with that width.
    """
    count = indices.numel()
    if not count:
        return 0, torch.empty(0, dtype=torch.uint8, device=indices.device)
    gaps = indices.diff(prepend=indices.new_full((1,), -1)) - 1
    gaps = gaps if numel > torch.iinfo(torch.int32).max else gaps.int()
    widths = range(max(numel // count, 1).bit_length() + 1)
    if gaps.is_meta:
        width = widths[-1] - 1
    else:
        width = int(torch.stack([(gaps >> one).sum() + one * count for one in widths]).argmin())
    ends = ((gaps >> width) + 1).cumsum(0) - 1
    stop = count + (numel - count >> width) if indices.is_meta else int(ends[-1]) + 1
    marks = torch.zeros(stop, dtype=torch.uint8, device=indices.device)
    marks.index_fill_(0, ends, 1)
    return width, torch.cat((pack_codes(gaps, width).view(-1), pack_bits(marks)))


def decode(data: Tensor, width: int, count: int) -> Tensor:
    """Return the `count` indices that `encode` has written to `data` with this `width`: 1-D int64, ascending."""
    stop = width * -(-count // BYTE)
    if data.is_meta or not count:
        return torch.empty(count, dtype=torch.int64, device=data.device)
    narrow = torch.int16 if width < torch.iinfo(torch.int16).bits else torch.int64
    low = unpack_codes(data[:stop].view(width, -(-count // BYTE)), count, narrow)
    ends = unpack_bits(data[stop:], BYTE * (data.numel() - stop)).nonzero().view(-1)
    high = ends.diff(prepend=ends.new_full((1,), -1)) - 1
    return ((high << width) + low + 1).cumsum(0) - 1


HEADER = 8
"""Bytes before the values: one int64, the number of values x 256 + the width of the codes."""


def pack(values: Tensor, indices: Tensor, like: Tensor) -> Payload:
    """Return a payload of a gradient `like` this, one part of bytes: a header, 1-D `values`, codes of 1-D `indices`."""
    width, codes = encode(indices, like.numel())
    header = torch.full((1,), len(values) << 8 | width, dtype=torch.int64, device=like.device)
    return Payload.pack(torch.cat((header.view(torch.uint8), values.view(torch.uint8), codes)), like=like)


def unpack(payload: Payload, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return what `pack` has packed: values of this `dtype`, and int64 indices."""
    # Without storage their number is unknown; decoded, they are few beside the tensor.
    header = 0 if payload.buffer.is_meta else int(payload.buffer[:HEADER].clone().view(torch.int64))
    count, width = header >> 8, header & 255
    stop = HEADER + count * dtype.itemsize
    return payload.buffer[HEADER:stop].clone().view(dtype), decode(payload.buffer[stop:], width, count)


@dataclass(frozen=True)
class SparseCompressor(Compressor):
    """Sends some elements, in the gradient's dtype or in half precision, with int32 indices (int64 from 2^31 on)."""

    half: bool = field(default=False, kw_only=True)
    """Whether values travel as float16: 6 bytes per element. The rounding error stays in the residual."""
    coded: bool = field(default=False, kw_only=True)
    """Whether indices travel as the gaps between them, in Golomb-Rice code (`packed.py`): at random places a hundredth
    more than n x H(k / n) bits, H the binary entropy, and fewer where they lie together. Messages differ in length."""

    @property
    def equal_sizes(self) -> bool:
        return not self.coded

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
            limit = torch.finfo(torch.float16).max
            values = wide.clamp_(-limit, limit).to(torch.float16)
            if not (self.equal_sizes or values.is_meta):  # what rounding makes zero need not travel
                kept = values.nonzero().view(-1)
                values, indices = values[kept], indices[kept]
        if self.coded:
            return pack(values, indices, grad)
        kind = Payload if self.equal_sizes else Ragged
        return kind.pack(values, indices.to(index_dtype(grad)), like=grad)

    def _elements(self, payload: Payload) -> tuple[Tensor, ...]:
        return unpack(payload, torch.float16 if self.half else payload.dtype) if self.coded else payload.parts()

    def sent_indices(self, payload: Payload) -> Tensor:
        return self._elements(payload)[1].long()

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        if not add_sent_each_([(dense, [payload])], scale, zero=False):
            values, indices = self._elements(payload)
            dense.view(-1).index_add_(0, indices, values.to(dense.dtype), alpha=scale)
        return dense
