"""Tensors as blocks of elements that share one number, gone through a bounded number of elements at a time."""

from collections.abc import Iterator

from torch import Tensor

PIECES = 16
"""In how many pieces a large tensor is gone through."""
SMALLEST = 1 << 14
"""Elements below which a piece is not worth its launches."""


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
