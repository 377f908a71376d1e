"""Signs of a tensor as bits, eight a byte, processed a piece at a time."""

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.kernels.bits import BYTE, octets, pack_bits, unpack_bits


def pack_signs(flat: Tensor) -> Tensor:
    """Return ceil(n / 8) bytes for 1-D `flat`, whose bits are 1 where it is negative; zeros of either sign are 0."""
    packed = torch.empty(-(-flat.numel() // BYTE), dtype=torch.uint8, device=flat.device)
    for piece in pieces(flat.numel(), BYTE):
        packed[octets(piece)] = pack_bits(flat[piece] < 0)
    return packed


def add_signs_(dense: Tensor, packed: Tensor, plus: Tensor, minus: Tensor, scale: float) -> Tensor:
    """Add `scale` x `minus` to `dense` where bits of `packed` are 1, and `scale` x `plus` elsewhere; return `dense`.

    dense: contiguous. plus, minus: one number each, of any dtype.
    """
    flat = dense.view(-1)
    for piece in pieces(flat.numel(), BYTE):
        negative = unpack_bits(packed[octets(piece)], piece.stop - piece.start).bool()
        flat[piece].add_(torch.where(negative, minus, plus).to(flat.dtype), alpha=scale)
    return dense
