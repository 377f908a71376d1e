"""What is sent of a tensor: its largest magnitudes, packed, and how they are added to their places."""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct

import torch
from torch import Tensor

from resireduce.kernels.codes import BITS, Coded
from resireduce.kernels.native import library, threads
from resireduce.kernels.on_gpu import in_triton
from resireduce.kernels.selection import GROUP, found_in, piece_of, room_for, sample_of
from resireduce.kernels.submatrix import IN_C, Crossing, crossing_in_c, suits_c

BYTES = 8
"""Bytes of a packed element: a float32 value and an int32 index."""
ADDENDS = f"2P2Pi{IN_C}"
"""Layout of arguments: the elements, and an addend: numbers; or codes, scales and bits; or a crossing."""
NO_CODES, NO_CROSSING = (0,) * 3, (0,) * 8
LAYOUT = (torch.float32, torch.int32)
"""Dtypes of values and indices, each of four bytes."""
NOT_DONE = -3
"""The status that compiled code returns if it has changed nothing, as in candidates.c."""
Addend = Tensor | Coded | Crossing
"""What may be added to a gradient on the way: as many numbers, numbers in few bits, or those of a sub-matrix."""


MEMBERS = Struct(f"{ADDENDS}5q3i3P0P")
"""Layout of a structure of arguments for one tensor; several follow one another."""
NOT_FINITE = -2
"""The status if NaN or infinity was found."""


@cache
def _largest(found: ctypes.CDLL) -> Callable[..., int]:
    """Return the compiled function, which takes the structures of several tensors, and room for a status of each."""
    function = found.resireduce_largest_each
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p], None
    return function


def packed_largest(
    flat: Tensor, k: int, added: Addend | None = None, takes: bool = False, check: str = ""
) -> Tensor | None:
    """Return the `k` largest magnitudes of 1-D `flat`, as `largest_magnitudes` selects them: values, then indices.

    The result is a 1-D uint8 tensor of float32 values and then int32 indices, both in the order of the indices. `added`
    (1-D, if a tensor) is added to `flat` first, in place. With `takes`, the selected elements of `flat` become zero.
    Return None, and do nothing, for anything but contiguous float32 on a CPU, or without a compiler.

    check: raise FloatingPointError if what is "added", or the "sum", is not finite.
    """
    if library("candidates") is None or not flat.is_cpu or flat.dtype != torch.float32:
        return None
    packed = torch.empty(BYTES * k, dtype=torch.uint8, device="cpu")  # whatever the script set as default
    (status,) = packed_largest_each([(flat, k, added, packed, check)], takes)
    if status == NOT_FINITE:
        raise FloatingPointError("an element is NaN or infinite")
    return packed if status == 1 else None


def packed_largest_each(
    tensors: Sequence[tuple[Tensor, int, Addend | None, Tensor, str]], takes: bool = False
) -> list[int]:
    """Do as `packed_largest` for several tensors, by one call of compiled code; return the status of each.

    Args:
        tensors: the elements, of any shape; how many of them are selected; what is added; 1-D uint8 memory that
            receives values and indices; and what is checked.
        takes: whether the selected elements become zero.

    Returns:
        for each 1, if it has been done; NOT_FINITE, if what was checked is not finite, and nothing was selected; or
        NOT_DONE, if nothing was done.
    """
    found, statuses = library("candidates"), [NOT_DONE] * len(tensors)
    told = [(place, *one) for place, one in enumerate(tensors) if found is not None and _suits(*one[:3])]
    sized = [(*one, sizes) for one in told if (sizes := _sizes(one[1].numel(), one[2])) is not None]
    if found is None or not sized:
        return statuses
    where = "meta" if tensors[0][0].is_meta else "cpu"
    scratch = torch.empty(max(sizes[-1] for *_, sizes in sized), dtype=torch.uint8, device=where)
    if scratch.is_meta:  # a plan, which counts memory
        return [1 if place in {place for place, *_ in sized} else NOT_DONE for place in range(len(tensors))]
    structures, places, room = [], [], scratch.data_ptr()
    for place, dense, k, added, packed, check, (*sample_and_room, _) in sized:
        n = dense.numel()
        if (addend := _addend(added, n, packed)) is not None:
            to, checks = packed.data_ptr(), ("", "sum", "added").index(check)
            told_in_c = n, k, *sample_and_room, threads(n), takes, checks, room, to, to + BYTES // 2 * k
            structures.append(MEMBERS.pack(dense.data_ptr(), *addend, *told_in_c))
            places.append(place)
    answers = array("i", bytes(4 * len(places)))
    _largest(found)(b"".join(structures), len(places), answers.buffer_info()[0])
    del scratch  # what is held depends on no value
    for place, status in zip(places, answers, strict=True):
        statuses[place] = status if status in (1, NOT_DONE, NOT_FINITE) else _scanned(*tensors[place], takes)
    return statuses


def _suits(dense: Tensor, k: int, added: Addend | None) -> bool:
    """Whether compiled code takes these, or would take them if they had storage."""
    fits = 0 < k < dense.numel() < 1 << 31 and (suits_c(dense) or (dense.is_meta and dense.dtype == torch.float32))
    return fits and (not isinstance(added, Tensor) or suits_c(added) or added.is_meta)


def _scanned(dense: Tensor, k: int, added: object, packed: Tensor, check: str, takes: bool) -> int:
    """Select from the sums, which are complete, by a second scan, since the sample was misleading."""
    flat = dense.view(-1)
    values, places = (half.view(dtype) for half, dtype in zip(packed.split(BYTES // 2 * k), LAYOUT, strict=True))
    try:
        found_in(flat, k, piece_of(flat.numel()), None, check == "sum").chosen(places)
    except FloatingPointError:
        return NOT_FINITE
    torch.index_select(flat, 0, places, out=values)
    if takes:
        flat.index_fill_(0, places.long(), 0.0)
    return 1


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


# --- Elements that were sent are added to their places by one call of compiled code or one kernel: calls cost time ---


SENT = Struct("Pq2Pqfi0P")
"""Layout of a structure of arguments: what one rank sent of one tensor."""


@cache
def _add_sent(found: ctypes.CDLL) -> Callable[..., int]:
    function = found.resireduce_add_sent_each
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_int64], ctypes.c_int
    return function


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
    return add_sent_each_([(dense, [(packed, count)])], scale, zero=False)


def add_sent_each_(sent: Sequence[tuple[Tensor, Sequence[tuple[Tensor, int]]]], scale: float, zero: bool) -> bool:
    """Do as `add_sent_` with this `scale`, on a CPU, for several tensors, each with what all ranks sent, by one call.

    zero: whether the tensors are set to zeros before. False, and nothing is done, if any of them is not suited.
    """
    found, structures = library("sent"), []
    for dense, parts in sent:
        if found is None or dense.dtype != torch.float32 or not dense.is_cpu or not dense.is_contiguous():
            return False
        to, size, zeroes = dense.data_ptr(), dense.numel(), zero
        for packed, count in parts:
            if not packed.is_cpu or not packed.is_contiguous() or packed.nbytes < 8 * count:
                return False
            values = packed.data_ptr()
            structures.append(SENT.pack(to, size, values, values + 4 * count, count, scale, zeroes))
            zeroes = False
    return bool(found is not None and _add_sent(found)(b"".join(structures), len(structures)))
