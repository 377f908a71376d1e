"""A gradient that is not finite becomes zeros on the device: it is read once, and written only then."""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl

TILE = 4096
"""Elements of one program, a power of two."""


@jit
def _look(gradient, finite, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Set the number at `finite` to 0 if an element is NaN or infinite."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    value = tl.load(gradient + at, mask=at < n, other=0.0).to(tl.float32)
    if tl.min((tl.abs(value) < float("inf")).to(tl.int32)) == 0:
        tl.store(finite, 0)


@jit
def _zero(gradient, finite, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write zeros, if the number at `finite` is 0."""
    if tl.load(finite) == 0:
        at = tl.program_id(0) * TILE + tl.arange(0, TILE)
        tl.store(gradient + at, tl.zeros([TILE], tl.float32).to(gradient.dtype.element_ty), mask=at < n)


def zero_unless_finite_(grad: Tensor, tile: int = TILE) -> Tensor:
    """Fill `grad` with zeros if it holds NaN or infinity; return whether it held none: bool, 0-D, on its device.

    grad: contiguous, float32, float16 or bfloat16, of 1 to 2^30 elements. tile: elements of one program, a power of
    two.
    """
    finite, programs = torch.ones((), dtype=torch.uint8, device=grad.device), (-(-grad.numel() // tile),)
    with on_device(grad):
        _look[programs](grad, finite, grad.numel(), tile, **EXACT)
        _zero[programs](grad, finite, grad.numel(), tile, **EXACT)
    return finite.view(torch.bool)
