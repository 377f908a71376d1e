"""Norms of tensors, of rows and of columns, sums that are weighted by them, and whether all elements are finite."""

from cmath import isfinite

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.kernels.native import library, suits, threads
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

    Compiled code gives the same bits in one call: most tensors are small, and each operation on a 0-D tensor takes as
    long as processing some thousand elements. A kernel in Triton reads `x` once and forms sums in float64, as a CPU
    does: plain torch on a GPU, which forms them in float32, may differ in the last bit.
    """
    n = x.numel()
    if in_triton(x):
        from resireduce.kernels.gpu import norms

        return norms.mean_norm(x, phi)
    compiled = library() if suits(x) else None
    if compiled is None:
        l1, l2 = l1_and_l2_norm(x)
        return phi * l1 / n + (1 - phi) * l2 / n**0.5
    mean = x.new_empty(())
    compiled.resireduce_mean_norm(x.data_ptr(), n, phi, 1 - phi, n**0.5, threads(n), mean.data_ptr())
    return mean


def l1_norms(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the L1 norms of the rows and of the columns of 2-D `matrix`: 1-D, in `dtype`, in which sums are formed.

    Compiled code gives the same bits in one pass; for a single row or column torch splits sums among its threads.
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


class WeightedSum:
    """The weighted sum of contiguous tensors of one size, dtype and device that come one after the other.

    Products, sums and quotients are each rounded, on every device.

    Args:
        first: the first tensor, whose memory becomes that of the sum.
        weight: 0-D, of that dtype; the other weights are added to it.
    """

    __slots__ = ("total", "weight")

    def __init__(self, first: Tensor, weight: Tensor):
        self.total, self.weight = first.mul_(weight), weight

    def add(self, more: Tensor, weight: Tensor) -> None:
        """Add weight x more to the sum, in the memory of `more`, and `weight`, 0-D, to the sum of weights."""
        self.total.add_(more.mul_(weight))  # addcmul_ would round once, but not everywhere
        self.weight.add_(weight)

    def average(self, room: Tensor | None) -> Tensor:
        """Return sum / sum of weights, in `room` if there is any; 0 if all weights are 0, not 0 / 0."""
        divisor = self.weight.clamp(min=torch.finfo(self.weight.dtype).tiny)
        return torch.div(self.total, divisor, out=self.total if room is None else room)
