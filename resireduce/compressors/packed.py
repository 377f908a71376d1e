"""Values, and the gaps between indices in Golomb-Rice code: Sattler et al., "Sparse binary compression: towards
distributed deep learning with minimal communication", IJCNN 2019, which has Golomb's codes; here Rice's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.compressors.topk import AsTheyAre, SparseCompressor, TopK
from resireduce.core.messages import Message, Payload, Ragged, Round
from resireduce.kernels.codes import BYTE, pack_bits, pack_codes, unpack_bits, unpack_codes

if TYPE_CHECKING:
    from resireduce.core.feedback import Finiteness, Sum

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


class Packed(AsTheyAre):
    """How values and indices travel with options: values in half precision, indices in code, or both."""

    def __init__(self, kind: type[Payload], half: bool, coded: bool):
        super().__init__(kind)
        self.half, self.coded = half, coded

    def pack(self, values: Tensor, indices: Tensor, like: Tensor) -> Payload:
        """Return the payload of 1-D `values` at flat `indices`; in code it is one part: a header, values, codes."""
        if self.half:
            wide = values.to(torch.promote_types(values.dtype, torch.float32))  # bfloat16 has no such number
            limit = torch.finfo(torch.float16).max
            values = wide.clamp_(-limit, limit).to(torch.float16)
            if self.kind is Ragged and not values.is_meta:  # what rounding makes zero need not travel
                kept = values.nonzero().view(-1)
                values, indices = values[kept], indices[kept]
        if not self.coded:
            return super().pack(values, indices, like)
        width, codes = encode(indices, like.numel())
        header = torch.full((1,), len(values) << 8 | width, dtype=torch.int64, device=like.device)
        return Payload.pack(torch.cat((header.view(torch.uint8), values.view(torch.uint8), codes)), like=like)

    def unpack(self, payload: Payload) -> Payload:
        """Return a payload of two parts, values and indices, which are int64 if they were in code."""
        if not self.coded:
            return payload
        # Without storage their number is unknown; decoded, they are few beside the tensor.
        header = 0 if payload.buffer.is_meta else int(payload.buffer[:HEADER].clone().view(torch.int64))
        count, width, dtype = header >> 8, header & 255, torch.float16 if self.half else payload.dtype
        stop = HEADER + count * dtype.itemsize
        values = payload.buffer[HEADER:stop].clone().view(dtype)
        unpacked = Payload.pack(values, decode(payload.buffer[stop:], width, count), like=payload.buffer)
        return replace(unpacked, shape=payload.shape, dtype=payload.dtype)

    def send(self, largest: TopK, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message | Round:
        """Return the message of a bucket, whose `sums` are compressed one after the other."""
        return Compressor.send(largest, sums, finiteness)


def form_of(compressor: SparseCompressor) -> AsTheyAre:
    """Return how values and indices of `compressor` travel."""
    kind = Payload if compressor.equal_sizes else Ragged
    half, coded = compressor.half, compressor.coded
    return Packed(kind, half, coded) if half or coded else AsTheyAre(kind)
