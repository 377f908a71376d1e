"""Signs of a tensor as bits, eight a byte, gone through a piece at a time."""

from collections.abc import Iterator

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.kernels.bits import BYTE, octets, pack_bits, unpack_bits


def pack_signs(flat: Tensor) -> Tensor:
    """Return ceil(n / 8) bytes of 1-D `flat`, whose bits are set where it is negative; zeros of either sign are not."""
    packed = torch.empty(-(-flat.numel() // BYTE), dtype=torch.uint8, device=flat.device)
    for piece in pieces(flat.numel(), BYTE):
        packed[octets(piece)] = pack_bits(flat[piece] < 0)
    return packed


def negatives(packed: Tensor, numel: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of a flat tensor of `numel` elements, and for each which are negative in `packed`: 1-D bool."""
    for piece in pieces(numel, BYTE):
        yield piece, unpack_bits(packed[octets(piece)], piece.stop - piece.start).bool()
