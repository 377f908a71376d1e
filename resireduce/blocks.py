"""Tensors as blocks of elements that share one number, gone through a bounded number of elements at a time."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

PIECES = 16
"""In how many pieces a large tensor is gone through."""
SMALLEST = 1 << 14
"""Elements below which a piece is not worth its launches."""

ALIGNED = 64
"""Rows are cut where so many elements, or a multiple, lie before: vectorised code then treats each element as it would
in the whole tensor, so that what is computed element by element has the same bits."""


def pieces(numel: int, block: int = 1) -> Iterator[slice]:
    """Return slices of a flat tensor of `numel` elements, about a sixteenth of them each: temporaries stay small.

    Each begins with a whole multiple of `block` elements, and all but the last are one long.
    """
    return slices(numel, block * -(-max(SMALLEST, -(-numel // PIECES)) // block))


def slices(numel: int, size: int) -> Iterator[slice]:
    """Yield slices of a flat tensor of `numel` elements, `size` of them each but for the last."""
    for first in range(0, numel, size):
        yield slice(first, min(first + size, numel))


def spread(shared: Tensor, block: int, piece: slice) -> Tensor:
    """For each element of `piece` the number of its block: 1-D, as long as the piece, which must begin with a block.

    shared: 1-D, one number for each `block` elements of the whole tensor.
    """
    blocks = shared[piece.start // block : -(-piece.stop // block)]
    return blocks.repeat_interleave(block)[: piece.stop - piece.start]


def row_slices(shape: torch.Size, itemsize: int, nbytes: int) -> list[slice]:
    """Return slices of the rows (dimension 0) of a tensor of `shape`, of at most `nbytes` bytes each if rows allow it.

    itemsize: bytes of an element. All slices but the last have one length, and begin with a multiple of ALIGNED
    elements: where rows are long or of odd length, that may be more than `nbytes`. A tensor of at most `nbytes`, or of
    one row, is one slice.
    """
    if shape.numel() * itemsize <= nbytes:
        return [slice(0, shape[0] if shape else 1)]
    width = shape[1:].numel()
    unit = ALIGNED // math.gcd(ALIGNED, width)
    rows = max(nbytes // (width * itemsize) // unit, 1) * unit
    return list(slices(shape[0], rows))
