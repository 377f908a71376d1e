"""Elements that were sent are added to their places by one call of compiled code: small tensors cost calls."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import cast

import torch
from torch import Tensor

from resireduce.kernels.native import library

LAYOUT = (torch.float32, torch.int32)
"""Dtypes of values and indices, each of four bytes."""


@cache
def _add_sent(found: ctypes.CDLL) -> Callable[..., int]:
    """Return the function, which is told once what it is given."""
    function = found.resireduce_add_sent
    number, place = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [place, number, number, place, place, number, ctypes.c_float, ctypes.c_int]
    return cast(Callable[..., int], function)


def add_sent_(part: Tensor, start: int, packed: Tensor, count: int, scale: float, whole: bool) -> bool:
    """Add `scale` x `count` values to their places in `part`, in place: elements from number `start` on of a tensor.

    packed: float32 values and then their int32 indices, ascending, as 1-D uint8. whole: all of them lie in `part`; else
    those that do are added. False, and nothing is done, if not all lie there, or for what is not contiguous float32 of
    the CPU, or without a compiler.
    """
    fits = part.dtype == torch.float32 and part.is_cpu and part.is_contiguous() and packed.is_contiguous()
    found = library("sent") if fits and packed.is_cpu and packed.nbytes >= 8 * count else None
    if found is None:
        return False
    values = packed.data_ptr()
    return bool(_add_sent(found)(part.data_ptr(), part.numel(), start, values, values + 4 * count, count, scale, whole))
