"""Codes of 8 and 4 bits with a scale for each block of 64: encoding, and decoding onto a gradient, in one pass each."""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, inverse, jit, on_device, times, tl

BLOCK = 64
TILE, ROWS = 1024, 32
"""Elements, and blocks, of one program: powers of two."""
TINY = torch.finfo(torch.float32).tiny


@jit
def _decode_add(target, codes, scales, n, BITS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    gradient = tl.load(target + at, mask=at < n, other=0.0).to(tl.float32)
    if BITS == 8:
        code = tl.load(codes + at, mask=at < n, other=0).to(tl.int32)
    else:
        code = ((tl.load(codes + at // 2, mask=at < n, other=0).to(tl.int32) >> (at % 2 * 4)) & 15) - 8
    value = code.to(tl.float32) * tl.load(scales + at // 64, mask=at < n, other=0.0)
    value = value.to(target.dtype.element_ty).to(tl.float32)  # rounded before it is added, as in the plain form
    tl.store(target + at, (gradient + value).to(target.dtype.element_ty), mask=at < n)


# Quotients go through float64: in float32, and in tl.floor, Triton may take numbers below the smallest normal one for
# zero.
@jit
def _encode(values, drawn, codes, scales, n, TINY: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    LARGEST: tl.constexpr = 127 if BITS == 8 else 7
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * 64 + tl.arange(0, 64)[None, :]
    value = tl.load(values + at, mask=at < n, other=0.0).to(tl.float32)
    scale = times(tl.max(tl.abs(value), 1), 1.0 / LARGEST)
    tl.store(scales + rows, scale, mask=rows * 64 < n)
    steps = inverse(tl.maximum(scale, TINY))
    scaled = times(value, steps[:, None]) + tl.load(drawn + at, mask=at < n, other=0.0)
    code = scaled.to(tl.int32)
    code -= (code.to(tl.float32) > scaled).to(tl.int32)
    code = tl.minimum(tl.maximum(code, -LARGEST), LARGEST)
    if BITS == 8:
        tl.store(codes + at, code.to(tl.int8), mask=at < n)
    else:
        low, high = tl.split(tl.reshape(tl.where(at < n, code + 8, 0), [ROWS, 32, 2]))
        pair = rows[:, None] * 32 + tl.arange(0, 32)[None, :]
        tl.store(codes + pair, (low | (high << 4)).to(tl.uint8), mask=pair * 2 < n)


def decode_add_(target: Tensor, codes: Tensor, scales: Tensor, bits: int) -> None:
    """Add the numbers that `codes` of 8 or 4 `bits` and float32 `scales` encode to contiguous `target`.

    target: float32, float16 or bfloat16, of 2^30 elements at most. codes: int8, or uint8 with two of 4 bits each, the
    first below.
    """
    n = target.numel()
    with on_device(target):
        _decode_add[(-(-n // TILE),)](target, codes, scales, n, bits, TILE, **EXACT)


def encode(values: Tensor, drawn: Tensor, codes: Tensor, scales: Tensor, bits: int, rows: int = ROWS) -> None:
    """Write `values` as `codes` of 8 or 4 `bits` and `scales`, in the form that `decode_add_` reads.

    values: contiguous, float32, float16 or bfloat16. drawn: float32, as many, on [0, 1): each value, in units of its
    scale, is rounded up if its fraction and this number add up to 1 or more. rows: blocks of one program.
    """
    n = values.numel()
    with on_device(values):
        _encode[(-(-n // (rows * BLOCK)),)](values, drawn, codes, scales, n, TINY, bits, rows, **EXACT)
