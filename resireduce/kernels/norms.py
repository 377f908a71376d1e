"""Norms of tensors, of rows and of columns, and sums that are weighted by them."""

import ctypes
from cmath import isfinite
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from resireduce.kernels.native import addresses, library, threads, with_members
from resireduce.kernels.on_gpu import in_triton

LANES, PIECE = 16, 1 << 16
"""Number of partial sums side by side, and elements of a piece, whose sums are formed separately."""


def is_finite(x: Tensor) -> bool:
    """Return whether no element of `x` is NaN or infinite; True without storage. The host waits for the device of `x`.

    A finite sum proves it, and is cheaper than the largest magnitude, which is computed if the sum is not finite.
    """
    return x.is_meta or isfinite(x.sum().item()) or isfinite(torch.linalg.vector_norm(x, torch.inf).item())


def refuse_non_finite(x: Tensor) -> None:
    """Raise FloatingPointError if an element of `x` is NaN or infinite."""
    if not is_finite(x):
        raise FloatingPointError("an element is NaN or infinite")


def l1_and_l2_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the L1 and the L2 norm of all elements of `x`: 0-D, in float32 at least.

    On a CPU sums are formed in float64, with the same result for any number of threads. torch would add magnitudes one
    by one in float32: with one thread it finds half of the L1 norm of 10^8 elements.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.device.type not in ("cpu", "meta"):
        l1, l2 = (torch.linalg.vector_norm(x, order, dtype=dtype) for order in (1, 2))
        return l1, l2
    sums = torch.zeros(2, 2, LANES, dtype=torch.float64, device=x.device)
    if not x.is_meta:
        _sum_into(sums, x.detach().reshape(-1))
    magnitudes, squares = _added_up(sums)
    return magnitudes.to(dtype), squares.sqrt().to(dtype)


def _added_up(sums: Tensor) -> Tensor:
    """Return the totals of magnitudes and of squares, 1-D, from the `sums` that `_sum_into` leaves, added pairwise."""
    lanes = sums[0] + sums[1]
    while lanes.shape[1] > 1:
        first, second = lanes.chunk(2, 1)
        lanes = first + second
    return lanes.view(-1)


def mean_norm(x: Tensor, phi: float) -> Tensor:
    """Return phi |x|_1 / n + (1 - phi) |x|_2 / sqrt(n) of all n elements of `x`: 0-D, in float32 at least.

    Compiled code gives the same bits in one call: most tensors are small, and each operation on a 0-D tensor takes as
    long as processing some thousand elements. A kernel in Triton reads `x` once and forms sums in float64, as a CPU
    does: plain torch on a GPU, which forms them in float32, may differ in the last bit.
    """
    n = x.numel()
    if in_triton(x):
        from resireduce.kernels.gpu import norms

        return norms.mean_norm(x, phi)
    compiled = library("sums") if x.is_cpu and x.dtype == torch.float32 and x.is_contiguous() else None
    if compiled is None:
        l1, l2 = l1_and_l2_norm(x)
        return phi * l1 / n + (1 - phi) * l2 / n**0.5
    mean = x.new_empty(())
    _mean_norm(compiled)(x.data_ptr(), n, phi, 1 - phi, n**0.5, threads(n), mean.data_ptr())
    return mean


@cache
def _mean_norm(compiled: ctypes.CDLL) -> Callable[..., int]:
    return with_members(compiled.resireduce_mean_norm, "Pq3fiP")


def _sum_into(sums: Tensor, flat: Tensor) -> None:
    """Add magnitudes and squares of `flat` to `sums`, zeros: (2, 2, 16), float64.

    The first half gets the sums of all complete pieces of 65,536 elements, the second those of the incomplete piece:
    sixteen sums of magnitudes and sixteen of squares each, where element i is added to sum i % 16. The sums of a piece
    begin with zero, so that threads can share pieces.
    """
    compiled = library("sums") if flat.dtype == torch.float32 and flat.is_contiguous() else None
    if compiled is not None:
        sizes = ctypes.c_int64(flat.numel()), threads(flat.numel())
        compiled.resireduce_sums(*addresses(flat), *sizes, *addresses(sums))
        return
    complete, last = sums.numpy()
    for part in flat.split(PIECE):
        values = np.abs(_array(part), dtype=np.float64)
        rows = np.pad(values, (0, -values.size % LANES)).reshape(-1, LANES)
        found = [np.vstack((np.zeros((1, LANES)), more)).sum(0) for more in (rows, rows * rows)]
        into = complete if values.size == PIECE else last
        into += found


def _array(flat: Tensor) -> np.ndarray:
    """Return the elements of `flat` for NumPy, which has no bfloat16: the upper half of a float32."""
    if flat.dtype != torch.bfloat16:
        return flat.numpy()
    upper: np.ndarray = flat.contiguous().view(torch.int16).numpy().astype(np.uint32) << 16
    return upper.view(np.float32)


def l1_norms(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the L1 norms of the rows and of the columns of 2-D `matrix`: 1-D, in `dtype`, in which sums are formed.

    Compiled code gives the same bits in one pass; for a single row or column torch splits sums among its threads.
    """
    fits = matrix.dtype == dtype == torch.float32 and matrix.is_cpu and min(matrix.shape) > 1
    compiled = library("submatrix") if fits and matrix.is_contiguous() else None
    if compiled is None:
        by_row, by_column = (torch.linalg.vector_norm(matrix, 1, dim=dim, dtype=dtype) for dim in (1, 0))
        return by_row, by_column
    by_row, by_column = (matrix.new_zeros(size) for size in matrix.shape)
    sizes = (*map(ctypes.c_int64, matrix.shape), threads(matrix.numel()))
    compiled.resireduce_l1_norms(*addresses(matrix), *sizes, *addresses(by_row, by_column))
    return by_row, by_column


# --- Weighted sums of tensors that come one after the other, and their averages ---


IS_ONE, IS_LAST, IS_NEW = 1, 2, 4
"""Flags of compiled sums: the names are those in sums.c."""
SUM_PIECE = 1 << 18
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


def _compiled(total: Tensor) -> Callable[..., int] | None:
    """Return the compiled function that adds to `total`, if there is one."""
    suits = total.dtype == torch.float32 and total.is_cpu and total.is_contiguous()
    found = library("sums") if suits else None
    return None if found is None else _add_weighted(found)


def _add(
    into: Tensor, total: Tensor, more: Tensor, weight: Tensor, weights: Tensor, is_one: bool, is_last: bool
) -> None:
    """Do as `add_weighted` of `resireduce.kernels.gpu.weighted`, in plain torch."""
    first = weights.clone() if is_one else None
    summed = weights.add_(weight)
    divisor = summed.clamp(min=torch.finfo(summed.dtype).tiny) if is_last else None
    for target, so_far, part in _pieces(into, total, more):
        multiplied = so_far if first is None else torch.mul(so_far, first, out=target)
        torch.add(multiplied, part.mul_(weight), out=target)
        if divisor is not None:
            target.div_(divisor)


def _kernel(*tensors: Tensor) -> Callable[..., None] | None:
    """Return the form of `_add` in Triton, where it takes these `tensors`."""
    if not in_triton(*tensors) or any(one.dtype != tensors[0].dtype for one in tensors):
        return None
    from resireduce.kernels.gpu.norms import add_weighted

    return add_weighted


@cache
def _add_weighted(compiled: ctypes.CDLL) -> Callable[..., int]:
    return with_members(compiled.resireduce_add_weighted, "5Pq3f2i")


def _pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Return pieces of contiguous `tensors` of one size, side by side; whole tensors if they are not on a CPU."""
    if tensors[0].numel() <= SUM_PIECE or not tensors[0].is_cpu:
        return [tensors]
    return zip(*(one.view(-1).split(SUM_PIECE) for one in tensors), strict=True)
