"""Kernels that go over one tensor once: where rows cross columns, codes of few bits. All tensors are contiguous, and
those of values float32, float16 or bfloat16.

The modules of the kernels can be imported, and read, without Triton.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton, tl = None, SimpleNamespace(constexpr=int)  # what signatures name

TILE = 1024
"""Elements that are processed at once, a power of two: of codes, or columns of a matrix."""
BLOCK, ROWS = 64, 32
"""Elements of a block that has a scale, and blocks of one program: powers of two."""
TINY = torch.finfo(torch.float32).tiny
ALIKE = {"do_not_specialize": ("width",), "do_not_specialize_on_alignment": ("spoilt", "arrived")}
"""Arguments for which Triton does not compile a kernel for each kind of value (1, multiples of 16, others), or for each
alignment: they lie anywhere in a table. It does for n: with multiples of 16, several elements are read at once."""
EXACT = {"num_warps": 8, "enable_fp_fusion": False}
"""How kernels are launched: a product is rounded before it is added to something, as in the plain form."""


def jit(function: Callable[..., Any]) -> Any:
    """Return `function` as a kernel; as it is, where there is no Triton."""
    return function if triton is None else triton.jit(**ALIKE)(function)


def launch(kernel: Any, grid: tuple[int, ...], first: Tensor, *others: Any) -> None:
    """Launch `kernel` in as many programs as the `grid` says, on the GPU of `first`; or in Triton's interpreter."""
    elsewhere = first.is_cuda and first.get_device() != torch.cuda.current_device()
    with torch.cuda.device(first.device) if elsewhere else nullcontext():
        kernel[grid](first, *others, **EXACT)


# --- Quotients of float32 numbers, rounded once, by a product: many are divided by one, which is inverted once ---
#
# With q = x / d, both of 24 bits, float64's x (1 / d) is off by 2^-52 q at most. If q lies in the middle between two
# numbers that float32 has, as it can if these are denormal, it has 24 bits itself, and the product rounded to 50 bits
# is q. Else q is 2^-48 q or more from any such middle: of two integers of 24 bits that are no multiples, one is off
# by 1 at least. So the product, rounded to 50 bits and then to float32, is q rounded to float32.


@jit
def inverse(divisor):  # type: ignore[no-untyped-def]
    """Return what `times` is told of float32 `divisor`, which is more than 0: its inverse in float64."""
    return 1.0 / divisor.to(tl.float64)


@jit
def times(x, inverted):  # type: ignore[no-untyped-def]
    """Return float32 `x` over the number of which `inverted` is the `inverse`, as float32 division does."""
    product = x.to(tl.float64) * inverted
    bits = (product.to(tl.int64, bitcast=True) + 4) & -8  # to 50 bits, of infinity none
    return bits.to(tl.float64, bitcast=True).to(tl.float32)


# --- The elements of a matrix where some rows cross some columns ---


@jit
def _cross(matrix, down, across, values, width, n, ADD: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    place = tl.load(down + row).to(tl.int64) * width + tl.load(across + at, mask=at < n, other=0)
    held = tl.load(matrix + place, mask=at < n, other=0.0)
    if ADD:
        value = tl.load(values + row.to(tl.int64) * n + at, mask=at < n, other=0.0)
        value = value.to(matrix.dtype.element_ty).to(tl.float32)  # rounded before it is added, as in the plain form
        tl.store(matrix + place, (held.to(tl.float32) + value).to(matrix.dtype.element_ty), mask=at < n)
    else:
        tl.store(values + row.to(tl.int64) * n + at, held, mask=at < n)


def cross_(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor, adds: bool) -> None:
    """Add 2-D `values` to where 1-D `rows` cross 1-D `columns` of 2-D `matrix`; or copy into `values` what lies there.

    No index occurs twice. matrix and values are of one dtype unless it `adds`; the others int32.
    """
    height, n = values.shape
    launch(_cross, (height, -(-n // TILE)), matrix, rows, columns, values, matrix.shape[1], n, adds, TILE)


# --- Codes of 8 and 4 bits with a scale for each block of 64: encoding, and decoding onto a gradient ---


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
    """Add the numbers that `codes` of 8 or 4 `bits` and float32 `scales` encode to `target`.

    target: 2^30 elements at most. codes: int8, or uint8 with two of 4 bits each, the first below.
    """
    n = target.numel()
    launch(_decode_add, (-(-n // TILE),), target, codes, scales, n, bits, TILE)


def encode(values: Tensor, drawn: Tensor, codes: Tensor, scales: Tensor, bits: int) -> None:
    """Write `values` as `codes` of 8 or 4 `bits` and `scales`, in the form that `decode_add_` reads.

    drawn: float32, as many, on [0, 1): each value, in units of its scale, is rounded up if its fraction and this number
    add up to 1 or more.
    """
    n = values.numel()
    launch(_encode, (-(-n // (ROWS * BLOCK)),), values, drawn, codes, scales, n, TINY, bits, ROWS)
