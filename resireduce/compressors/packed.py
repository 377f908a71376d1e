"""Values, and the gaps between indices in Golomb-Rice code: Sattler et al., "Sparse binary compression: towards
distributed deep learning with minimal communication", IJCNN 2019, which has Golomb's codes; here Rice's."""

from dataclasses import replace

import torch
from torch import Tensor

from resireduce.core.messages import Payload
from resireduce.kernels.codes import BYTE, pack_bits, pack_codes, unpack_bits, unpack_codes

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


def unpack(payload: Payload, dtype: torch.dtype) -> Payload:
    """Return what `pack` has packed: two parts, values of this `dtype` and int64 indices."""
    # Without storage their number is unknown; decoded, they are few beside the tensor.
    header = 0 if payload.buffer.is_meta else int(payload.buffer[:HEADER].clone().view(torch.int64))
    count, width = header >> 8, header & 255
    stop = HEADER + count * dtype.itemsize
    values = payload.buffer[HEADER:stop].clone().view(dtype)
    unpacked = Payload.pack(values, decode(payload.buffer[stop:], width, count), like=payload.buffer)
    return replace(unpacked, shape=payload.shape, dtype=payload.dtype)
