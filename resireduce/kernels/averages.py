"""Weighted sums of tensors that come one after the other, and their averages."""

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from typing import cast

import torch
from torch import Tensor

from resireduce.kernels.native import library, threads
from resireduce.kernels.norms import mean_norm
from resireduce.kernels.on_gpu import in_triton

PIECE = 1 << 18
"""Elements of a sum that a CPU works on at once: what one operation leaves, the next finds in the cache."""


def add_weighted(
    into: Tensor,
    total: Tensor,
    more: Tensor,
    weight: Tensor | float,
    weights: Tensor | None = None,
    is_one: bool = False,
    is_last: bool = False,
) -> None:
    """Write total + weight x more to `into`, and add the weight to the sum of `weights`, if there is one.

    Products, sums and quotients are each rounded, on a CPU and on a GPU, by compiled code or not.

    Args:
        into, total, more: contiguous, of one size, dtype and device. `into` may be `total`; `more` may be overwritten.
        weight: 0-D, of that dtype; or phi, for `mean_norm(more, phi)`.
        weights: 0-D, of that dtype, changed in place.
        is_one: `total` is one tensor and has not been multiplied by its weight, which `weights` are.
        is_last: the sum is divided by `weights`, and is the average; by the smallest normal number if that is more.
    """
    compiled = library("sums") if _suits(more) and _suits(total) and (into is total or _suits(into)) else None
    if compiled is None:
        own = weight if isinstance(weight, Tensor) else mean_norm(more, weight)
        form = _kernel(into, total, more, own, weights) or _add
        form(into, total, more, own, weights, is_one, is_last)
        return
    n, of_sum = total.numel(), None if weights is None else weights.data_ptr()
    told = into.data_ptr(), total.data_ptr(), more.data_ptr(), n, threads(n)
    norms = (0.0, 0.0, 0.0, weight.data_ptr()) if isinstance(weight, Tensor) else (weight, 1 - weight, n**0.5, None)
    _add_weighted(compiled)(*told, *norms, of_sum, is_one, is_last)


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


def _suits(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_cpu and tensor.is_contiguous()


@cache
def _add_weighted(compiled: ctypes.CDLL) -> Callable[..., None]:
    """Return the function, which is told once what it is given."""
    function = compiled.resireduce_add_weighted
    place, number, flag = ctypes.c_void_p, ctypes.c_float, ctypes.c_int
    sizes, norms = (ctypes.c_int64, ctypes.c_int), (number, number, number, place)
    function.argtypes = [place, place, place, *sizes, *norms, place, flag, flag]
    function.restype = None
    return cast(Callable[..., None], function)


def _pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Return pieces of contiguous `tensors` of one size, side by side; the whole of them, where they are on no CPU."""
    if tensors[0].numel() <= PIECE or not tensors[0].is_cpu:
        return [tensors]
    return zip(*(one.view(-1).split(PIECE) for one in tensors), strict=True)
