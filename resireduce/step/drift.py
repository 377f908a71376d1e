"""Whether parameters are still the same on all ranks, which the first steps of a training ask."""

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.blocks import slices

STEPS = 2
"""In how many steps it is asked: before the first, a forward pass may have made parameters; before the second, the
optimizer has changed them once."""
PIECE = 1 << 18
"""Elements that are added up at once."""
DIGESTS = 1 << 20
"""How many digests there are: few enough that the sum of the squares of all ranks' fits 64 bits."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The dtype as which an element of so many bytes is read."""
DRIFTED = (
    "parameters are no longer the same on all ranks, which the first two steps look at: averages are added to "
    "different models. Something is random on each rank for itself, as a layer that is made in its first forward pass, "
    "or an optimizer that rounds at random: seed all ranks alike for it, or run that pass before distribute(). Or a "
    "checkpoint was loaded on some ranks alone: load it on all"
)


def digest(parameters: Iterable[Tensor]) -> int:
    """Return a number, 1 to 2^20, that different `parameters` hardly share: a hash of sums over the bits of each.

    Tensors that wrap others, are sparse, or have no storage, count for nothing. The host waits for the devices once.
    """
    found = [torch.stack([*_sums(one)]).sum() for one in parameters if one.numel() and _has_bits(one)]
    if not found:
        return 1
    sums = torch.stack([one.to(found[0].device) for one in found]).tolist()
    return 1 + int.from_bytes(hashlib.sha256(str(sums).encode()).digest()[:8]) % DIGESTS


def _has_bits(parameter: Tensor) -> bool:
    plain = parameter.layout == torch.strided and not (parameter.is_meta or parameter.is_quantized)
    return plain and parameter.element_size() in BITS and not is_traceable_wrapper_subclass(parameter)


def _sums(parameter: Tensor) -> Iterator[Tensor]:
    """Yield sums over some rows, int64: all at once would take memory of several times the parameter.

    An element of bits b in place p counts b (b + p^2): plain sums are the same for elements in another order, and for
    many that are multiplied by a power of two.
    """
    rows = parameter.detach().view(1) if parameter.dim() == 0 else parameter.detach()
    for some in slices(len(rows), max(1, PIECE * len(rows) // rows.numel())):
        bits = rows[some].view(BITS[rows.element_size()]).long()
        if rows.element_size() == 8:
            bits = bits ^ bits >> 32  # what the highest bits say would be lost in products of 64 bits
        places = torch.arange(1, 1 + bits.numel(), device=bits.device).view(bits.shape)
        yield places.square_().add_(bits).mul_(bits).sum()
