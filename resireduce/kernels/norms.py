"""Norms of tensors, of their rows, columns and blocks."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.kernels.native import in_triton, library, suits, threads

LANES, PIECE = 16, 1 << 16
"""Number of partial sums side by side, and elements of a piece, whose sums are formed separately."""


def l1_and_l2_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the L1 and the L2 norm of all elements of `x`: 0-D, in float32 at least.

    On a CPU sums are formed in float64, with the same result for any number of threads. torch would add magnitudes one
    by one in float32: with one thread it finds half of the L1 norm of 10^8 elements.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.device.type not in ("cpu", "meta"):
        l1, l2 = (torch.linalg.vector_norm(x, order, dtype=dtype) for order in (1, 2))
        return l1, l2
    lanes = _sums(x.detach().reshape(-1)).sum(0)
    while lanes.shape[1] > 1:  # pairwise
        first, second = lanes.chunk(2, 1)
        lanes = first + second
    magnitudes, squares = lanes.view(-1)
    return magnitudes.to(dtype), squares.sqrt().to(dtype)


def _sums(flat: Tensor) -> Tensor:
    """Return sums of magnitudes and of squares of `flat`, on a CPU or without storage: (2, 2, 16), float64.

    The first half has the sums of all complete pieces of 65,536 elements, the second those of the incomplete piece:
    sixteen sums of magnitudes and sixteen of squares each, where element i is added to sum i % 16. The sums of a piece
    begin with zero, so that threads can share pieces.
    """
    sums = torch.zeros(2, 2, LANES, dtype=torch.float64, device=flat.device)
    compiled = library() if flat.dtype == torch.float32 and flat.is_contiguous() else None
    if compiled is None:
        for part in flat.split(PIECE):
            values = pad(part.abs().double(), (0, -part.numel() % LANES)).view(-1, LANES)
            into = sums[0 if part.numel() == PIECE else 1]
            into[0] += values.cumsum(0)[-1]  # one after the other, as a sum would not add them up
            into[1] += values.square_().cumsum(0)[-1]
    elif not flat.is_meta:
        compiled.resireduce_sums(flat.data_ptr(), flat.numel(), threads(flat.numel()), sums.data_ptr())
    return sums


def mean_norm(x: Tensor, phi: float) -> Tensor:
    """Return phi |x|_1 / n + (1 - phi) |x|_2 / sqrt(n) of all n elements of `x`: 0-D, in float32 at least.

    A kernel in Triton forms sums in float64, as a CPU does: plain torch on a GPU, which forms them in float32, may
    differ in the last bit.
    """
    if in_triton(x):
        from resireduce.kernels.gpu import one_pass

        return one_pass.mean_norm(x, phi)
    l1, l2 = l1_and_l2_norm(x)
    return phi * l1 / x.numel() + (1 - phi) * l2 / x.numel() ** 0.5


def l1_norms(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the L1 norms of the rows and of the columns of 2-D `matrix`: 1-D, in `dtype`, in which sums are formed.

    Compiled code gives the same bits; for a single row or column torch splits sums among its threads.
    """
    compiled = library() if dtype == torch.float32 and suits(matrix) and min(matrix.shape) > 1 else None
    if compiled is None:
        by_row, by_column = (torch.linalg.vector_norm(matrix, 1, dim=dim, dtype=dtype) for dim in (1, 0))
        return by_row, by_column
    by_row, by_column = (matrix.new_zeros(size) for size in matrix.shape)
    sizes = *matrix.shape, threads(matrix.numel())
    compiled.resireduce_l1_norms(matrix.data_ptr(), *sizes, by_row.data_ptr(), by_column.data_ptr())
    return by_row, by_column


def norms_of_blocks(flat: Tensor, size: int, order: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return the norm of this `order` of each `size` elements of 1-D `flat`, formed in `dtype`: 1-D.

    The last block may be shorter.
    """
    whole = flat[: flat.numel() - flat.numel() % size].view(-1, size)
    norms = torch.linalg.vector_norm(whole, order, dim=1, dtype=dtype)
    rest = flat[whole.numel() :]
    if not rest.numel():
        return norms
    return torch.cat((norms, torch.linalg.vector_norm(rest, order, dtype=dtype).view(1)))
