"""The weight of a residual, a mean of its L1 and L2 norms, in one launch that reads it once."""

from ctypes import c_float

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, at_once, jit, on_device, tl

TILE = 2048
"""Elements that are processed at once, a power of two."""
PROGRAMS, MOST = 4, 1024
"""Most programs for each multiprocessor, and most programs in all, a power of two."""


@jit
def _mean_norm(  # type: ignore[no-untyped-def]
    flat, sums, arrived, mean, n, phi, rest, size, root, TILE: tl.constexpr, MOST: tl.constexpr
):
    """Write phi |x|_1 / size + rest |x|_2 / root for the `n` elements: the last program to come adds up all sums.

    sums: room for two float64 numbers of each program. arrived: a counter, 0 at first, of the programs that have come.
    """
    own, programs = tl.program_id(0), tl.num_programs(0)
    at = own * TILE + tl.arange(0, TILE)
    magnitudes, squares = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    start = 0
    while start + own * TILE < n:
        value = tl.abs(tl.load(flat + start + at, mask=start + at < n, other=0.0).to(tl.float64))
        magnitudes += value
        squares += value * value
        start += programs * TILE
    tl.store(sums + own, tl.sum(magnitudes))
    tl.store(sums + programs + own, tl.sum(squares))
    tl.debug_barrier()  # both are written
    if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") + 1 == programs:
        of = tl.arange(0, MOST)
        l1 = tl.sum(tl.load(sums + of, mask=of < programs, other=0.0, volatile=True)).to(tl.float32)
        square = tl.sum(tl.load(sums + programs + of, mask=of < programs, other=0.0, volatile=True))
        l2 = tl.sqrt(square).to(tl.float32)
        first = ((phi * l1).to(tl.float64) / size).to(tl.float32)
        second = ((rest * l2).to(tl.float64) / root).to(tl.float32)
        tl.store(mean, first + second)


def mean_norm(x: Tensor, phi: float, tile: int = TILE) -> Tensor:
    """Return phi |x|_1 / n + (1 - phi) |x|_2 / sqrt(n) of all n elements of `x`: 0-D, float32, on its device.

    x: contiguous, float32, float16 or bfloat16, of 1 to 2^30 elements. Sums are formed in float64, in an order that
    depends on n and the device alone; norms, products and quotients are rounded to float32 each, as on a CPU. tile: how
    many elements are processed at once, a power of two.
    """
    n = x.numel()
    programs = min(-(-n // tile), PROGRAMS * at_once(x.device), MOST)
    room = torch.zeros(2 * programs + 1, dtype=torch.float64, device=x.device)
    mean = torch.empty((), dtype=torch.float32, device=x.device)
    weights = (c_float(one).value for one in (phi, 1 - phi, n, n**0.5))  # as kernels are given them
    with on_device(x):
        _mean_norm[(programs,)](x, room, room[-1:].view(torch.int32), mean, n, *weights, tile, MOST, **EXACT)
    return mean
