"""Adds a tensor times its weight to a weighted sum, and divides by all weights after the last, in one pass."""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl
from resireduce.kernels.gpu.quotients import inverse, times

TILE = 2048
"""Elements of one program, a power of two."""


@jit
def _add_weighted(  # type: ignore[no-untyped-def]
    into,
    total,
    more,
    weight,
    weights,
    n,
    TINY: tl.constexpr,
    TILE: tl.constexpr,
    IS_ONE: tl.constexpr,
    IS_LAST: tl.constexpr,
):
    """Write total + weight x more. IS_ONE: multiply total by `weights` first. IS_LAST: divide by the sum of weights."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    so_far = tl.load(total + at, mask=at < n, other=0.0).to(tl.float32)
    own = tl.load(weight).to(tl.float32)
    if IS_ONE:  # each product and sum is rounded as in the plain form, which writes it
        so_far = (so_far * tl.load(weights).to(tl.float32)).to(into.dtype.element_ty).to(tl.float32)
    product = tl.load(more + at, mask=at < n, other=0.0).to(tl.float32) * own
    both = (so_far + product.to(into.dtype.element_ty).to(tl.float32)).to(into.dtype.element_ty)
    if IS_LAST:
        summed = (tl.load(weights).to(tl.float32) + own).to(into.dtype.element_ty).to(tl.float32)
        both = times(both.to(tl.float32), inverse(tl.where(summed < TINY, TINY, summed))).to(into.dtype.element_ty)
    tl.store(into + at, both, mask=at < n)


def add_weighted(
    into: Tensor,
    total: Tensor,
    more: Tensor,
    weight: Tensor,
    weights: Tensor | None,
    is_one: bool,
    is_last: bool,
) -> None:
    """Write total + weight x more to `into`, and add `weight` to `weights`, if there is such a sum of weights.

    into, total, more: contiguous, of one size and dtype, float32, float16 or bfloat16, of 1 to 2^30 elements; `into`
    may be `total`. weight, weights: 0-D, of that dtype. is_one: `total` is multiplied by what `weights` were, first.
    is_last: the sum is divided by what they become, or by the smallest normal number if that is more.
    """
    n, tiny, known = into.numel(), torch.finfo(into.dtype).tiny, weights is not None
    so_far = weight if weights is None else weights
    with on_device(into):
        numbers = (n, tiny, TILE, known and is_one, known and is_last)
        _add_weighted[(-(-n // TILE),)](into, total, more, weight, so_far, *numbers, **EXACT)
    if weights is not None:
        weights.add_(weight)
