"""Ascending indices in little more than their entropy: gaps in Golomb-Rice codes (Rice and Plaunt, IEEE Trans. Commun.
1971; Golomb, IEEE Trans. Inf. Theory 1966, shows that they suit gaps between events that are equally probable).

A gap g is the number of elements that are skipped. Its lower `width` bits are stored as they are; the rest, g >> width,
is stored as that many zeros and a one. The ones thus mark the ends of gaps, which one search finds, without a loop.
"""

import torch
from torch import Tensor

from resireduce.kernels.bits import BYTE, pack_bits, pack_codes, unpack_bits, unpack_codes


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
    width = _best_width(gaps, numel)
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


def _best_width(gaps: Tensor, numel: int) -> int:
    """Return the width that takes fewest bits: never more than the bits of the mean gap."""
    widths = range(max(numel // gaps.numel(), 1).bit_length() + 1)
    bits = torch.stack([(gaps >> width).sum() + width * gaps.numel() for width in widths])
    return widths[-1] - 1 if gaps.is_meta else int(bits.argmin())
