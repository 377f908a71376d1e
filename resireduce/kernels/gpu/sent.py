"""What is sent, packed and taken out of a gradient, and what has come, added to an average: in one pass each."""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl

TILE = 1024
"""Elements of one program, a power of two."""
BYTES = 8
"""Bytes of a packed element: a float32 value and an int32 index."""


@jit
def _take_packed(flat, indices, values, places, k, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    index = tl.load(indices + at, mask=at < k, other=0)
    tl.store(values + at, tl.load(flat + index, mask=at < k, other=0.0), mask=at < k)
    tl.store(places + at, index.to(tl.int32), mask=at < k)
    tl.store(flat + index, tl.zeros([TILE], tl.float32), mask=at < k)


@jit
def _add_sent(part, values, places, n, k, first, scale, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add `scale` x each value to its place in `part`, elements `first` to `first` + `n`, if it lies there."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = tl.load(places + at, mask=at < k, other=-1).to(tl.int64) - first
    here = (at < k) & (place >= 0) & (place < n)
    added = tl.load(values + at, mask=here, other=0.0) * scale
    tl.store(part + place, tl.load(part + place, mask=here, other=0.0) + added, mask=here)


def take_packed_(flat: Tensor, indices: Tensor, tile: int = TILE) -> Tensor:
    """Return the elements of `flat` at `indices` as they travel, and leave zeros there.

    flat: 1-D, contiguous, float32. indices: int64, unique. Returned are float32 values and then int32 indices, as 1-D
    uint8. tile: elements of one program, a power of two.
    """
    k = indices.numel()
    packed = torch.empty(BYTES * k, dtype=torch.uint8, device=flat.device)
    values, places = packed[: 4 * k].view(torch.float32), packed[4 * k :].view(torch.int32)
    with on_device(flat):
        _take_packed[(-(-k // tile),)](flat, indices, values, places, k, tile, **EXACT)
    return packed


def add_sent_(part: Tensor, first: int, packed: Tensor, count: int, scale: float, tile: int = TILE) -> None:
    """Add `scale` x those of `count` values whose places lie in `part`, in place: element `first` of a tensor and on.

    part: 1-D, contiguous, float32. packed: as of `take_packed_`; no place is there twice. A product is rounded before
    it is added. tile: elements of one program, a power of two.
    """
    values, places = packed[: 4 * count].view(torch.float32), packed[4 * count : BYTES * count].view(torch.int32)
    with on_device(part):
        programs = (-(-count // tile),)
        _add_sent[programs](part, values, places, part.numel(), count, first, scale, tile, **EXACT)
