"""A gradient and its residual in one pass, which also sees whether the gradient is finite."""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl

TILE = 1024
"""Elements of one program, a power of two."""


@jit
def note_unless_finite(gradient, spoilt):  # type: ignore[no-untyped-def]
    """Set the number at `spoilt` to 1 if an element of `gradient` is NaN or infinite."""
    finite = tl.abs(gradient) < float("inf")
    if tl.min(finite.to(tl.int32)) == 0:
        tl.store(spoilt, 1)


@jit
def _add(target, values, spoilt, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    gradient = tl.load(target + at, mask=at < n, other=0.0).to(tl.float32)
    note_unless_finite(gradient, spoilt)
    value = tl.load(values + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(target + at, (gradient + value).to(target.dtype.element_ty), mask=at < n)


def add_(target: Tensor, values: Tensor, tile: int = TILE) -> Tensor:
    """Add `values` to `target`, both contiguous, of one size; return whether `target` held NaN or infinity before.

    Dtypes: float32, float16 or bfloat16; the sum is formed in float32 and rounded to that of `target`, as torch does.
    Of 2^30 elements at most. tile: elements of one program, a power of two. The result is int32, 0-D: 1 or 0.
    """
    spoilt = torch.zeros((), dtype=torch.int32, device=target.device)
    with on_device(target):
        _add[(-(-target.numel() // tile),)](target, values, spoilt, target.numel(), tile, **EXACT)
    return spoilt
