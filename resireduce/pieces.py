"""Tensors in pieces, how many of their elements are chosen, and at random which."""

import itertools
import math
import zlib
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Generator, Tensor

# --- Tensors as blocks of elements that share one number, processed a bounded number of elements at a time ---


PIECES = 16
"""Number of pieces in which a large tensor is processed."""
SMALLEST = 1 << 14
"""Smallest number of elements that is worth a piece of its own."""
HOSTS = ("cpu", "meta")
"""Types of devices whose pieces have SMALLEST elements. Tensors on `meta` are counted as those of a CPU."""


def pieces(numel: int, block: int = 1, smallest: int = SMALLEST) -> Iterator[slice]:
    """Return slices of a flat tensor of `numel` elements, about a sixteenth of them each: temporaries stay small.

    Each begins at a multiple of `block` elements, and all but the last have a multiple of it, and `smallest` at least.
    """
    return slices(numel, block * -(-max(smallest, -(-numel // PIECES)) // block))


def row_pieces(whole: Tensor) -> Iterator[slice]:
    """Return slices of the first dimension of `whole`, about a sixteenth of its elements each, as `pieces` does."""
    return slices(len(whole), -(-max(SMALLEST, -(-whole.numel() // PIECES)) // whole.shape[1:].numel()))


def is_host(tensor: Tensor) -> bool:
    """Return whether an operation on `tensor` is no launch on another device."""
    return tensor.device.type in HOSTS


def worth_a_piece(like: Tensor) -> int:
    """Return the smallest number of elements that is worth a piece of its own on the device of `like`."""
    return SMALLEST if is_host(like) else 1 << 20  # where each operation is a launch


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
    """Return for each element of `piece`, which must begin a block, the number that its block has in 1-D `shared`."""
    blocks = shared[piece.start // block : -(-piece.stop // block)]
    return blocks.repeat_interleave(block)[: piece.stop - piece.start]


@lru_cache(1 << 14)
def share(ratio: float, size: int) -> int:
    """Return max(1, floor(ratio x size)); a product that is whole but for rounding (0.29 x 100) counts as whole."""
    product = ratio * size
    nearest = round(product)
    return max(1, nearest if math.isclose(product, nearest, rel_tol=1e-12) else math.floor(product))


# --- Random choices that can be repeated, seeded by a name and a number, never by a global generator ---


def generator(device: torch.device, name: str, number: int = 0) -> Generator | None:
    """Return a generator seeded by `name` and `number`; None on the meta device, where nothing is drawn."""
    if device.type == "meta":
        return None
    return Generator(device).manual_seed(zlib.crc32(f"{name}/{number}".encode()))


def one_of_each(numel: int, k: int, first: int, last: int, source: Generator | None, device: torch.device) -> Tensor:
    """Return one element from each of the stretches `first` to `last` (exclusive) of `k` equal ones: int64, ascending.

    So k of `numel` elements are drawn without replacement, with equal probability up to rounding, without the memory of
    a permutation. `source`: a generator on `device`, where the result lies; None on the meta device.
    """
    borders = torch.arange(first, last + 1, device=device).mul_(numel).div_(k, rounding_mode="floor")
    lengths = borders.diff()
    draw = torch.rand(len(lengths), dtype=torch.float32, device=device, generator=source)
    return borders[:-1] + torch.minimum((lengths * draw).long(), lengths - 1)
