"""Norms of the rows and columns of a matrix."""

import ctypes

import torch
from torch import Tensor

from resireduce.kernels.native import addresses, library


def l1_norms(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the L1 norms of the rows and of the columns of 2-D `matrix`: 1-D, in `dtype`, in which sums are formed.

    Compiled code gives the same bits in one pass; for a single row or column torch splits sums among its threads.
    """
    fits = matrix.dtype == dtype == torch.float32 and matrix.device.type == "cpu" and min(matrix.shape) > 1
    compiled = library("norms") if fits and matrix.is_contiguous() else None
    if compiled is None:
        by_row, by_column = (torch.linalg.vector_norm(matrix, 1, dim=dim, dtype=dtype) for dim in (1, 0))
        return by_row, by_column
    by_row, by_column = (matrix.new_zeros(size) for size in matrix.shape)
    sizes = map(ctypes.c_int64, matrix.shape)
    compiled.resireduce_l1_norms(*addresses(matrix), *sizes, *addresses(by_row, by_column))
    return by_row, by_column
