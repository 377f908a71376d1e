"""Whether a gradient is finite, and the mean of a residual's norms: each element is read once."""

from ctypes import c_float

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, at_once, jit, on_device, tl

TILE, LOOK_TILE = 2048, 4096
"""Elements that are processed at once, powers of two: of norms and sums, and by `zero_unless_finite_`."""
LOOK_PROGRAMS, SUM_PROGRAMS, MOST = 8, 4, 1024
"""Most programs of `zero_unless_finite_` and of `mean_norm` for each multiprocessor; and most of the second in all, a
power of two. In all they are fewer than 2^15."""


@jit
def _zero_unless_finite(gradient, state, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write to `state` whether all elements are finite; the last program to come writes zeros if not.

    state: two numbers, 0 at first: 1 if all are finite; and the number of programs that have come, plus 2^16 for each
    that has found an element that is not.
    """
    first = tl.program_id(0) * TILE + tl.arange(0, TILE)
    fine = tl.full([TILE], 1, tl.int32)
    start = 0
    while start + tl.program_id(0) * TILE < n:
        value = tl.load(gradient + start + first, mask=start + first < n, other=0.0).to(tl.float32)
        fine = fine & (tl.abs(value) < float("inf")).to(tl.int32)
        start += tl.num_programs(0) * TILE
    seen = tl.where(tl.min(fine) == 0, 65537, 1)
    seen += tl.atomic_add(state + 1, seen, sem="acq_rel", scope="gpu")
    if (seen & 65535) == tl.num_programs(0):
        if seen < 65536:
            tl.store(state, 1)
        else:
            at = tl.arange(0, TILE)
            start = 0
            while start < n:
                zeros = tl.zeros([TILE], tl.float32).to(gradient.dtype.element_ty)
                tl.store(gradient + start + at, zeros, mask=start + at < n)
                start += TILE


def zero_unless_finite_(grad: Tensor, tile: int = LOOK_TILE) -> Tensor:
    """Fill `grad` with zeros if it holds NaN or infinity; return 1 if it held none, else 0: int32, 0-D, on its device.

    grad: contiguous, float32, float16 or bfloat16, of 1 to 2^30 elements. tile: how many elements are processed at
    once, a power of two.
    """
    state = torch.zeros(2, dtype=torch.int32, device=grad.device)
    programs = min(-(-grad.numel() // tile), LOOK_PROGRAMS * at_once(grad.device))
    with on_device(grad):
        _zero_unless_finite[(programs,)](grad, state, grad.numel(), tile, **EXACT)
    return state[0]


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
    programs = min(-(-n // tile), SUM_PROGRAMS * at_once(x.device), MOST)
    room = torch.zeros(2 * programs + 1, dtype=torch.float64, device=x.device)
    mean = torch.empty((), dtype=torch.float32, device=x.device)
    weights = (c_float(one).value for one in (phi, 1 - phi, n, n**0.5))  # as kernels are given them
    with on_device(x):
        _mean_norm[(programs,)](x, room, room[-1:].view(torch.int32), mean, n, *weights, tile, MOST, **EXACT)
    return mean
