"""Norms of tensors, and of the rows and columns of a matrix."""

import ctypes
from cmath import isfinite
from collections.abc import Callable
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
        from resireduce.kernels.gpu import mean_norm as kernel

        return kernel.mean_norm(x, phi)
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
