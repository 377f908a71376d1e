"""Adds received values to their places in an average, in one pass."""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl

TILE = 1024
"""Elements of one program, a power of two."""
BYTES = 8
"""Bytes of a packed element: a float32 value and an int32 index."""


@jit
def _add_sent(dense, values, places, n, k, scale, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add `scale` x each value to its place in `dense`, of `n` elements, if it lies there."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = tl.load(places + at, mask=at < k, other=-1).to(tl.int64)
    here = (at < k) & (place >= 0) & (place < n)
    added = tl.load(values + at, mask=here, other=0.0) * scale
    tl.store(dense + place, tl.load(dense + place, mask=here, other=0.0) + added, mask=here)


def add_sent_(dense: Tensor, packed: Tensor, count: int, scale: float, tile: int = TILE) -> None:
    """Add `scale` x each of `count` values to its place in `dense`, in place. A product is rounded before it is added.

    dense: 1-D, contiguous, float32. packed: float32 values and then their int32 indices, as 1-D uint8; no index is
    there twice. tile: elements of one program, a power of two.
    """
    values, places = packed[: 4 * count].view(torch.float32), packed[4 * count : BYTES * count].view(torch.int32)
    with on_device(dense):
        _add_sent[(-(-count // tile),)](dense, values, places, dense.numel(), count, scale, tile, **EXACT)
