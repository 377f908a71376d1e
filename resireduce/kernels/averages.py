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
"""Flags of compiled sums: the names are those in sums.c."""
PIECE = 1 << 18
"""Elements of a sum that a CPU works on at once: what one operation leaves, the next finds in the cache."""


class WeightedSum:
    """The weighted sum of contiguous tensors of one size, dtype and device that come one after the other.

    Products, sums and quotients are each rounded, on a CPU and on a GPU, by compiled code or not.

    Args:
        first: the first tensor, whose memory becomes that of the sum.
        weight: 0-D, of that dtype; or phi, for `mean_norm(first, phi)`, which is formed where the second tensor comes.
        is_one: whether `first` is one tensor, not yet multiplied by its weight; otherwise it is a weighted sum already.
    """

    __slots__ = ("_compiled", "_is_one", "is_average", "total", "weight")

    def __init__(self, first: Tensor, weight: Tensor | float, is_one: bool = True):
        self.total, self.weight, self._is_one, self.is_average = first, weight, is_one, False
        self._compiled = _compiled(first)

    def add(self, more: Tensor, weight: Tensor | float, room: Tensor | None = None) -> None:
        """Add weight x more to the sum, and `weight` to the sum of weights; `more` may be overwritten.

        weight: 0-D; or phi, for `mean_norm(more, phi)`. room: given with the last tensor: memory for the average. The
        divisor is the sum of weights, or the smallest normal number if that is larger.
        """
        into, total = self.total if room is None else room, self.total
        if self._compiled is None or more.dtype != total.dtype:
            own = weight if isinstance(weight, Tensor) else mean_norm(more, weight)
            tensors = into, total, more, own, self._weight()
            (_kernel(*tensors) or _add)(*tensors, self._is_one, room is not None)
        else:
            flags = (0 if room is None else IS_LAST) | (IS_ONE if self._is_one else 0)
            given, phi = (weight.data_ptr(), 0.0) if isinstance(weight, Tensor) else (0, weight)
            weights = weight if weight is self.weight else self._weight()
            if not isinstance(weights, Tensor):  # of both, one phi
                weights, flags = total.new_empty(()), flags | IS_NEW
            n, self.weight = total.numel(), weights
            places = into.data_ptr(), total.data_ptr(), more.data_ptr(), given, weights.data_ptr()
            self._compiled(*places, n, phi, 1 - phi, n**0.5, threads(n), flags)
        self.total, self._is_one, self.is_average = into, False, room is not None

    def multiplied(self) -> tuple[Tensor, Tensor]:
        """Return the weighted sum, in its memory (a single tensor is multiplied now), and the sum of weights."""
        weight = self._weight()
        if self._is_one:
            self.total.mul_(weight)
            self._is_one = False
        return self.total, weight

    def _weight(self) -> Tensor:
        if not isinstance(self.weight, Tensor):
            self.weight = mean_norm(self.total, self.weight)
        return self.weight


def add_weighted_(total: Tensor, more: Tensor, weight: Tensor) -> None:
    """Add weight x more to contiguous `total`, in place, each product rounded; `more`, like it, may be overwritten."""
    compiled = _compiled(total)
    if compiled is None or more.dtype != total.dtype:
        (_kernel(total, total, more, weight, None) or _add)(total, total, more, weight, None, False, False)
        return
    n, place = total.numel(), total.data_ptr()
    compiled(place, place, more.data_ptr(), weight.data_ptr(), 0, n, 0.0, 1.0, n**0.5, threads(n), 0)


def _compiled(total: Tensor) -> Callable[..., int] | None:
    """Return the compiled function that adds to `total`, if there is one."""
    suits = total.dtype == torch.float32 and total.is_cpu and total.is_contiguous()
    found = library("sums") if suits else None
    return None if found is None else _add_weighted(found)


def _add(
    into: Tensor, total: Tensor, more: Tensor, weight: Tensor, weights: Tensor | None, is_one: bool, is_last: bool
) -> None:
    """Do as `add_weighted` of `resireduce.kernels.gpu.weighted`, in plain torch."""
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
    """Return pieces of contiguous `tensors` of one size, side by side; whole tensors if they are not on a CPU."""
    if tensors[0].numel() <= PIECE or not tensors[0].is_cpu:
        return [tensors]
    return zip(*(one.view(-1).split(PIECE) for one in tensors), strict=True)
