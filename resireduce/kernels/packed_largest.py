"""What is sent of a tensor: its largest magnitudes, packed, and how they are added to their places."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from resireduce.kernels.codes import BITS, Coded
from resireduce.kernels.native import library, threads, with_members
from resireduce.kernels.on_gpu import in_triton
from resireduce.kernels.selection import GROUP, by_candidates, piece_of, room_for, sample_of
from resireduce.kernels.submatrix import IN_C, Crossing, crossing_in_c, suits_c

BYTES = 8
"""Bytes of a packed element: a float32 value and an int32 index."""
ADDENDS = f"2P2Pi{IN_C}"
"""Layout of arguments: the elements, and an addend: numbers; or codes, scales and bits; or a crossing."""
NO_CODES, NO_CROSSING = (0,) * 3, (0,) * 8
NOT_DONE = -3
"""The status that compiled code returns if it has changed nothing, as in candidates.c."""
Addend = Tensor | Coded | Crossing
"""What may be added to a gradient on the way: as many numbers, numbers in few bits, or those of a sub-matrix."""


@cache
def _largest(found: ctypes.CDLL) -> Callable[..., int]:
    """Return the compiled function, which takes the addend and all other numbers as members of a structure."""
    return with_members(found.resireduce_largest, ADDENDS + "5q3i3P")


def packed_largest(
    flat: Tensor, k: int, added: Addend | None = None, takes: bool = False, check: bool = False
) -> Tensor | None:
    """Return the `k` largest magnitudes of 1-D `flat`, as `largest_magnitudes` selects them: values, then indices.

    The result is a 1-D uint8 tensor of float32 values and then int32 indices, both in the order of the indices. `added`
    (1-D, if a tensor) is added to `flat` first, in place. With `takes`, the selected elements of `flat` become zero.
    Return None, and do nothing, for anything but contiguous float32 on a CPU, or without a compiler.

    check: raise FloatingPointError if the sum is not finite.
    """
    n = flat.numel()
    if not (0 < k < n < 1 << 31 and suits_c(flat) and (not isinstance(added, Tensor) or suits_c(added))):
        return None
    found, sizes = library("candidates"), _sizes(n, k)
    if found is None or sizes is None:
        return None
    packed = torch.empty(BYTES * k, dtype=torch.uint8, device="cpu")  # whatever the script set as default
    addend = _addend(added, n, packed)
    if addend is None:
        return None
    *sample_and_room, nbytes = sizes
    scratch, to = torch.empty(nbytes, dtype=torch.uint8, device="cpu"), packed.data_ptr()
    told = n, k, *sample_and_room, threads(n), takes, check, scratch.data_ptr(), to, to + BYTES // 2 * k
    status = _largest(found)(flat.data_ptr(), *addend, *told)
    if status in (1, NOT_DONE):
        return packed if status == 1 else None
    del packed, scratch  # what is held depends on no value
    return _packed(flat, by_candidates(flat, k, piece_of(n), None, check), takes)


@cache
def _sizes(n: int, k: int) -> tuple[int, int, int, int] | None:
    """Return step and rank of the sample, as `sample_of`, the room for candidates, and its bytes; None if there is too
    little.

    The plain form takes 13 bytes for each candidate and this one 9, so that the same memory has room for more.
    """
    plain = room_for(n, k, piece_of(n))
    room = min(n, 13 * plain // 9)
    step, wanted = sample_of(n, k, room)
    return None if wanted >= -(-n // step) or n > GROUP // 8 * plain else (step, wanted, room, 13 * plain)


def _addend(added: Addend | None, n: int, room: Tensor) -> tuple[int, ...] | None:
    """Return the arguments, as in ADDENDS, for what is `added` to `n` elements, with zeros for what there is not; None
    if compiled code cannot add it, or `room` is too small.

    A crossing needs memory in `room`, where nothing else is written before all is added.
    """
    if added is None or isinstance(added, Tensor):
        return (0 if added is None else added.data_ptr(), *NO_CODES, *NO_CROSSING)
    if not isinstance(added, Crossing):
        return 0, added.codes.data_ptr(), added.scales.data_ptr(), BITS[added.kind], *NO_CROSSING
    told = crossing_in_c(added, n, room)
    return None if told is None else (0, *NO_CODES, *told)


def _packed(flat: Tensor, indices: Tensor, takes: bool) -> Tensor:
    """Return the packed elements at `indices`, which a second scan has found because the sample was misleading."""
    packed = torch.cat((flat.index_select(0, indices).view(torch.uint8), indices.to(torch.int32).view(torch.uint8)))
    if takes:
        flat.index_fill_(0, indices, 0.0)
    return packed


# --- Elements that were sent are added to their places by one call of compiled code or one kernel: calls cost time ---


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
        from resireduce.kernels.gpu import bucket

        bucket.add_topk_([dense], [count], packed[: BYTES * count], scale)
        return True
    fits = dense.dtype == torch.float32 and dense.is_cpu and dense.is_contiguous() and packed.is_contiguous()
    found = library("sent") if fits and packed.is_cpu and packed.nbytes >= 8 * count else None
    if found is None:
        return False
    values = packed.data_ptr()
    return bool(_add_sent(found)(dense.data_ptr(), dense.numel(), values, values + 4 * count, count, scale))
