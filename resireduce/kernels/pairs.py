"""Values with their indices in one tensor, pair after pair, so that any run of them can be sent by itself."""

import torch
from torch import Tensor

INT32 = torch.iinfo(torch.int32)


def pairs(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """Return 1-D integers, twice as many as 1-D `values` (float32 or float64): the bits of each value, then its index.

    They are int32; or int64 if values are float64, or `numel`, which all indices are below, exceeds int32.
    """
    narrow = values.dtype == torch.float32 and numel <= INT32.max
    bits = values.view(torch.int64 if values.dtype == torch.float64 else torch.int32)
    dtype = torch.int32 if narrow else torch.int64
    return torch.stack((bits.to(dtype), indices.to(dtype)), 1).view(-1)


def unpaired(paired: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the values, in `dtype` (float32 or float64), and the indices, int64, of `paired`, made by `pairs`."""
    bits, indices = paired.view(-1, 2).unbind(1)
    wide = bits.to(torch.int64 if dtype == torch.float64 else torch.int32).contiguous()
    return wide.view(dtype), indices.long().contiguous()


def summed(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the sums of `parts`, pairs of values and indices, by index, and the indices: ascending, each once.

    In each part no index repeats. Sums are formed in the order of parts, the same on every device.
    """
    if parts[0][1].is_meta:  # which indices are equal is unknown: as if none were
        return torch.cat([values for values, _ in parts]), torch.cat([places for _, places in parts])
    indices = torch.cat([places for _, places in parts]).unique()
    sums = torch.zeros(len(indices), dtype=parts[0][0].dtype, device=indices.device)
    for values, places in parts:
        sums.index_add_(0, torch.searchsorted(indices, places), values)
    return sums, indices
