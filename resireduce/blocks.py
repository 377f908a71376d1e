"""Tensors as blocks of elements that share one number, processed a bounded number of elements at a time."""

import itertools
import math
from collections.abc import Iterator

from torch import Tensor

PIECES = 16
"""Number of pieces in which a large tensor is processed."""
SMALLEST = 1 << 14
"""Smallest number of elements that is worth a piece of its own."""


def pieces(numel: int, block: int = 1, smallest: int = SMALLEST) -> Iterator[slice]:
    """Return slices of a flat tensor of `numel` elements, about a sixteenth of them each: temporaries stay small.

    Each begins at a multiple of `block` elements, and all but the last have a multiple of it, and `smallest` at least.
    """
    return slices(numel, block * -(-max(smallest, -(-numel // PIECES)) // block))


def slices(numel: int, size: int) -> Iterator[slice]:
    """Yield slices of a flat tensor of `numel` elements, `size` of them each except the last."""
    for first in range(0, numel, size):
        yield slice(first, min(first + size, numel))


def coprime_step(n: int, least: int) -> int:
    """Return the least number, `least` or more, that has no factor in common with `n`: the step of an even sample.

    If every such-th element is sampled, rows, columns and places in a kernel all occur equally often, whatever the
    shape of the `n` elements. Every 63rd element of 3 x 3 kernels, in contrast, has the same place in its kernel.
    """
    return next(step for step in itertools.count(least) if math.gcd(step, n) == 1)


def spread(shared: Tensor, block: int, piece: slice) -> Tensor:
    """Return for each element of `piece`, which must begin a block, the number that its block has in `shared`: 1-D.

    shared: 1-D, one number for each `block` elements of the whole tensor.
    """
    blocks = shared[piece.start // block : -(-piece.stop // block)]
    return blocks.repeat_interleave(block)[: piece.stop - piece.start]
