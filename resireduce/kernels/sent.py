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
    return with_members(found.resireduce_add_sent, "Pq2Pqf")


def add_sent_(dense: Tensor, packed: Tensor, count: int, scale: float) -> bool:
    """Add `scale` x `count` values to their places in `dense`, in place; return whether that was done.

    packed: float32 values and then their int32 indices, as 1-D uint8. False, and nothing is done, for what is not
    contiguous float32, where there is neither compiled code for the CPU nor Triton for the GPU, or if on a CPU an index
    is none of `dense`.
    """
    if dense.dtype == torch.float32 and count and in_triton(dense, packed):
        from resireduce.kernels.gpu import sent

        sent.add_sent_(dense.view(-1), packed, count, scale)
        return True
    fits = dense.dtype == torch.float32 and dense.is_cpu and dense.is_contiguous() and packed.is_contiguous()
    found = library("sent") if fits and packed.is_cpu and packed.nbytes >= 8 * count else None
    if found is None:
        return False
    values = packed.data_ptr()
    return bool(_add_sent(found)(dense.data_ptr(), dense.numel(), values, values + 4 * count, count, scale))
