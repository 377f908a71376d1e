"""Elements that were sent are added to their places by one call of compiled code or one kernel: calls cost time."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from resireduce.kernels.native import library, with_members
from resireduce.kernels.on_gpu import in_triton

LAYOUT = (torch.float32, torch.int32)
"""Dtypes of values and indices, each of four bytes."""


@cache
def _add_sent(found: ctypes.CDLL) -> Callable[..., int]:
    return with_members(found.resireduce_add_sent, "P2q2Pqfi")


def add_sent_(part: Tensor, start: int, packed: Tensor, count: int, scale: float, whole: bool) -> bool:
    """Add `scale` x `count` values to their places in `part`, in place: elements from number `start` on of a tensor.

    packed: float32 values and then their int32 indices, ascending, as 1-D uint8. whole: all of them lie in `part`; else
    those that do are added. False, and nothing is done, for what is not contiguous float32, where there is neither
    compiled code for the CPU nor Triton for the GPU, or if on a CPU not all lie there.
    """
    if part.dtype == torch.float32 and count and in_triton(part, packed):
        from resireduce.kernels.gpu import sent

        sent.add_sent_(part.view(-1), start, packed, count, scale)
        return True
    fits = part.dtype == torch.float32 and part.is_cpu and part.is_contiguous() and packed.is_contiguous()
    found = library("sent") if fits and packed.is_cpu and packed.nbytes >= 8 * count else None
    if found is None:
        return False
    values = packed.data_ptr()
    return bool(_add_sent(found)(part.data_ptr(), part.numel(), start, values, values + 4 * count, count, scale, whole))
