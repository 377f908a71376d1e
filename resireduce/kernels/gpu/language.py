"""Triton, where it is installed: the modules of the kernels can be imported, and read, without it."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton, tl = None, SimpleNamespace(constexpr=int)  # what signatures name

SIZES = ("width", "tensors", "chunks")
"""Arguments for which Triton does not compile a kernel for each kind of value (1, multiples of 16, others). It does for
those called n: with multiples of 16, several elements are read at once."""
EXACT = {"num_warps": 8, "enable_fp_fusion": False}
"""How kernels are launched: a product is rounded before it is added to something, as in the plain form."""


def jit(function: Callable[..., Any]) -> Any:
    """Return `function` as a kernel; as it is, where there is no Triton."""
    if triton is None:
        return function
    given = [name for name in inspect.signature(function).parameters if name in SIZES]
    return triton.jit(do_not_specialize=given)(function)


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which Triton launches kernels on the GPU of `tensor`; in its interpreter that is the CPU."""
    elsewhere = tensor.is_cuda and tensor.get_device() != torch.cuda.current_device()
    return torch.cuda.device(tensor.device) if elsewhere else nullcontext()


@cache
def at_once(device: torch.device) -> int:
    """Return how many multiprocessors `device` has; for the interpreter, which runs programs in turn, one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


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
