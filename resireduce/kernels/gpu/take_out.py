"""Takes the elements to send out of a gradient in one pass: values are packed, and zeros are left in their places."""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl

TILE = 1024
"""Elements of one program, a power of two."""


@jit
def _take_out(flat, indices, values, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    index = tl.load(indices + at, mask=at < n, other=0)
    tl.store(values + at, tl.load(flat + index, mask=at < n, other=0.0), mask=at < n)
    tl.store(flat + index, tl.zeros([TILE], tl.float32).to(flat.dtype.element_ty), mask=at < n)


def take_out_(flat: Tensor, indices: Tensor, tile: int = TILE) -> Tensor:
    """Return the elements of contiguous 1-D `flat` at `indices` (int64, unique), and leave zeros there.

    tile: elements of one program, a power of two.
    """
    values = torch.empty(indices.numel(), dtype=flat.dtype, device=flat.device)
    if indices.numel():
        with on_device(flat):
            _take_out[(-(-indices.numel() // tile),)](flat, indices, values, indices.numel(), tile, **EXACT)
    return values
