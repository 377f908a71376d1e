"""Whether parameters are still the same on all ranks, which the first steps of a training ask."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.blocks import slices

STEPS = 2
"""In how many steps it is asked: before the first, a forward pass may have made parameters; before the second, the
optimizer has changed them once."""
PIECE, DIGESTS = 1 << 18, 1 << 20
"""Elements that are added up at once, and how many digests there are: few enough for sums of their squares."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DRIFTED = (
    "parameters are no longer the same on all ranks, which the first two steps look at: averages are added to "
    "different models. Something is random on each rank for itself, as a layer that is made in its first forward pass, "
    "or an optimizer that rounds at random: seed all ranks alike for it, or run that pass before distribute(). Or a "
    "checkpoint was loaded on some ranks alone: load it on all"
)


def digest(parameters: Iterable[Tensor]) -> int:
    """Return a number, 1 to 2^20, that different `parameters` hardly share: their bits, added up tensor by tensor.

    Tensors that wrap others, are sparse, or have no storage, count for nothing. The host waits for the devices once.
    """
    found = [torch.stack([*_sums(one)]).sum() for one in parameters if one.numel() and _has_bits(one)]
    if not found:
        return 1
    total = 0
    for one in torch.stack([part.to(found[0].device) for part in found]).tolist():
        total = (total * 31 + one) % DIGESTS
    return 1 + total


def _has_bits(parameter: Tensor) -> bool:
    plain = parameter.layout == torch.strided and not (parameter.is_meta or parameter.is_quantized)
    return plain and parameter.element_size() in BITS and not is_traceable_wrapper_subclass(parameter)


def _sums(parameter: Tensor) -> Iterator[Tensor]:
    """Yield sums of the bits of some rows, int64: all at once would take memory of twice the parameter."""
    rows = parameter.detach().view(1) if parameter.dim() == 0 else parameter.detach()
    for some in slices(len(rows), max(1, PIECE * len(rows) // rows.numel())):
        yield rows[some].view(BITS[rows.element_size()]).sum(dtype=torch.int64)
