"""How many of a tensor's elements are chosen, and at random which."""

import math
import zlib
from functools import lru_cache

import torch
from torch import Tensor

# --- The number of elements that a share of a tensor is ---


@lru_cache(1 << 14)
def share(ratio: float, size: int) -> int:
    """Return max(1, floor(ratio x size)); a product that is whole but for rounding (0.29 x 100) counts as whole."""
    product = ratio * size
    nearest = round(product)
    return max(1, nearest if math.isclose(product, nearest, rel_tol=1e-12) else math.floor(product))


# --- Random choices that can be repeated, seeded by a name and a number, never by a global generator ---


def generator(device: torch.device, name: str, number: int = 0) -> torch.Generator | None:
    """Return a generator seeded by `name` and `number`; None on the meta device, where nothing is drawn."""
    if device.type == "meta":
        return None
    return torch.Generator(device).manual_seed(zlib.crc32(f"{name}/{number}".encode()))


def one_of_each(
    numel: int, k: int, first: int, last: int, source: torch.Generator | None, device: torch.device
) -> Tensor:
    """Return one element from each of the stretches `first` to `last` (exclusive) of `k` equal ones: int64, ascending.

    So k of `numel` elements are drawn without replacement, with equal probability up to rounding, without the memory of
    a permutation. `source`: a generator on `device`, where the result lies; None on the meta device.
    """
    borders = torch.arange(first, last + 1, device=device).mul_(numel).div_(k, rounding_mode="floor")
    lengths = borders.diff()
    draw = torch.rand(len(lengths), dtype=torch.float32, device=device, generator=source)
    return borders[:-1] + torch.minimum((lengths * draw).long(), lengths - 1)
