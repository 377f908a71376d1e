"""Tensors as blocks of elements that share one number, gone through a bounded number of elements at a time."""

from collections.abc import Iterator

from torch import Tensor

PIECES = 16
SMALLEST = 1 << 14
"""Elements below which a piece is not worth its launches."""


def pieces(numel: int, block: int = 1) -> Iterator[slice]:
    """About a sixteenth of a flat tensor at a time, in whole blocks but for the last: temporaries stay small."""
    size = block * -(-max(SMALLEST, -(-numel // PIECES)) // block)
    for first in range(0, numel, size):
        yield slice(first, min(first + size, numel))


def spread(shared: Tensor, block: int, piece: slice) -> Tensor:
    """Of one number for each block, the one of each element of `piece`, which begins with a block."""
    blocks = shared[piece.start // block : -(-piece.stop // block)]
    return blocks.repeat_interleave(block)[: piece.stop - piece.start]
