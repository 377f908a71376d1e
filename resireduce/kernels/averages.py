"""Weighted sums of tensors that come one after the other, and their averages."""

import ctypes
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

from resireduce.kernels.native import library, threads, with_members
from resireduce.kernels.norms import mean_norm
from resireduce.kernels.on_gpu import in_triton

IS_ONE, IS_LAST, IS_NEW = 1, 2, 4
"""Flags, as in sums.c."""
PIECE = 1 << 18
"""Elements of a sum that a CPU works on at once: what one operation leaves, the next finds in the cache."""


def add_weighted(
    into: Tensor,
    total: Tensor,
    more: Tensor,
    weight: Tensor | float,
    weights: Tensor | float | None = None,
    is_one: bool = False,
    is_last: bool = False,
) -> Tensor | None:
    """Write total + weight x more to `into`; return the sum of `weights`, if there are any, and the weight.

    Products, sums and quotients are each rounded, on a CPU and on a GPU, by compiled code or not.

    Args:
        into, total, more: contiguous, of one size, dtype and device. `into` may be `total`; `more` may be overwritten.
        weight: 0-D, of that dtype; or phi, for `mean_norm(more, phi)`.
        weights: 0-D, of that dtype, changed in place; or with `is_one` phi, for `mean_norm(total, phi)`.
        is_one: `total` is one tensor and has not been multiplied by its weight, which `weights` are.
        is_last: the sum is divided by `weights`, and is the average; by the smallest normal number if that is more.
    """
    suits = more.dtype == total.dtype == torch.float32 and more.is_cpu and more.is_contiguous()
    compiled, flags = library("sums") if suits else None, is_one * IS_ONE | is_last * IS_LAST
    phi, own = (0.0, weight) if isinstance(weight, Tensor) else (weight, None)
    if weights is None or isinstance(weights, Tensor):
        so_far = weights
    elif compiled is None or own is not None:
        so_far = mean_norm(total, weights)
    else:
        so_far, flags = total.new_empty(()), flags | IS_NEW
    if compiled is None:
        own = mean_norm(more, phi) if own is None else own
        form = _kernel(into, total, more, own, so_far) or _add
        form(into, total, more, own, so_far, is_one, is_last)
        return so_far
    n, given, summed = total.numel(), _place(own), _place(so_far)
    places = into.data_ptr(), total.data_ptr(), more.data_ptr(), given, summed
    _add_weighted(compiled)(*places, n, phi, 1 - phi, n**0.5, threads(n), flags)
    return so_far


def _place(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _add(
    into: Tensor, total: Tensor, more: Tensor, weight: Tensor, weights: Tensor | None, is_one: bool, is_last: bool
) -> None:
    """Do as `add_weighted`, in plain torch."""
    first = weights.clone() if is_one and weights is not None else None
    summed = None if weights is None else weights.add_(weight)
    divisor = summed.clamp(min=torch.finfo(summed.dtype).tiny) if is_last and summed is not None else None
    for target, so_far, part in _pieces(into, total, more):
        multiplied = so_far if first is None else torch.mul(so_far, first, out=target)
        torch.add(multiplied, part.mul_(weight), out=target)
        if divisor is not None:
            target.div_(divisor)


def _kernel(*tensors: Tensor | None) -> Callable[..., None] | None:
    """Return the form of `_add` in Triton, where it takes these `tensors`."""
    there = [one for one in tensors if one is not None]
    if not in_triton(*there) or any(one.dtype != there[0].dtype for one in there):
        return None
    from resireduce.kernels.gpu.weighted import add_weighted

    return add_weighted


@cache
def _add_weighted(compiled: ctypes.CDLL) -> Callable[..., int]:
    return with_members(compiled.resireduce_add_weighted, "5Pq3f2i")


def _pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Return pieces of contiguous `tensors` of one size, side by side; the whole of them, where they are on no CPU."""
    if tensors[0].numel() <= PIECE or not tensors[0].is_cpu:
        return [tensors]
    return zip(*(one.view(-1).split(PIECE) for one in tensors), strict=True)
