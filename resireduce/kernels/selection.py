"""The largest magnitudes of tensors: selected, taken out into a message, and added to their places, on any device."""

from array import array
from collections.abc import Sequence
from functools import cache
from struct import Struct

import torch
from torch import Tensor

from resireduce import private
from resireduce.kernels.native import LARGEST, in_triton, library, suits, threads
from resireduce.pieces import coprime_step, slices

# --- The k largest magnitudes, exact and with defined ties: of equal ones those with the highest indices are chosen ---


GROUP = 1 << 16
"""Elements that compiled code counts apart, in four bytes."""
SMALLEST, PIECES = 1 << 11, 128
"""Least number of elements for which a selection has room, and the part of a tensor for which it has at least."""
SAMPLES = 1 << 16
"""About how many elements of a large tensor are in its sample."""
SPARSEST = 16
"""At most one element of this many is in the sample of a small tensor."""
KEY_BITS = 32
"""Lower bits of a key, which tell of two equal magnitudes the one with the higher index."""
BYTES = 8
"""Bytes of a packed element: a float32 value and an int32 index."""
NOT_FINITE = -2
"""The status of compiled code if NaN or infinity was found."""


def largest_magnitudes(flat: Tensor, k: int) -> Tensor:
    """Return indices (int64, ascending) of the `k` elements of 1-D `flat` with the largest magnitude.

    Of equal ones those with the highest indices are chosen, whatever the device or the number of threads. Extra memory
    is of the order of k elements and of some per cent of all, for any values. There must be no NaN.
    """
    n = flat.numel()
    if k >= n:
        return torch.arange(n, device=flat.device)
    if in_triton(flat):
        from resireduce.kernels.gpu import bucket

        return bucket.select(flat, k)
    packed = torch.empty(BYTES * k, dtype=torch.uint8, device=flat.device)
    if largest_each([(flat, k, None, packed, "")], takes=False) is None:
        del packed
        return by_keys(flat, k)
    return packed[BYTES // 2 * k :].view(torch.int32).long()


def by_keys(flat: Tensor, k: int, piece: int | None = None) -> Tensor:
    """Return what `largest_magnitudes` does for `flat` and `k`, in plain torch, without reading from the device.

    Each element has a key, one number, by which all are ordered, ties too. The largest k keys so far are held, and
    compared with those of each further `piece` of elements.
    """
    n = flat.numel()
    if flat.dtype == torch.float64 or n > 1 << KEY_BITS:
        return flat.abs().sort(stable=True).indices[-k:].sort().values
    least = SMALLEST if flat.is_cpu or flat.is_meta else GROUP  # each piece is some launches
    best = torch.empty(0, dtype=torch.int64, device=flat.device)
    for part in slices(n, piece or max(least, -(-n // 64), k // 4)):
        keys = torch.cat((best, _keys(flat[part], part.start)))
        best = torch.topk(keys, min(k, keys.numel()), sorted=False).values
    return best.bitwise_and_((1 << KEY_BITS) - 1).sort().values


def _keys(values: Tensor, first: int) -> Tensor:
    """Return numbers (int64) in the order of the magnitudes, equal ones in that of their indices, `first` and on."""
    bits = values.abs().view(torch.int32 if values.element_size() == 4 else torch.int16).long()
    places = torch.arange(first, first + values.numel(), device=values.device)
    return bits.bitwise_left_shift_(KEY_BITS).add_(places)


# --- The same by one call of compiled code for several tensors ---
#
# Two scans are enough in nearly all cases: one of a sample, which estimates a border, and one of all elements, of which
# those that reach the border are candidates (as in DGC, Lin et al., ICLR 2018, but exact).


MEMBERS = Struct("2P5q3i3P0P")
"""Layout of a structure of arguments for one tensor; several follow one another."""


def largest_each(
    tensors: Sequence[tuple[Tensor, int, Tensor | None, Tensor, str]], takes: bool = True
) -> list[int] | None:
    """Pack the largest magnitudes of several tensors; return the status of each: 1, or NOT_FINITE if that was found.

    Return None, and do nothing, for anything but contiguous float32 on a CPU, fewer than 2^31 each, or without a
    compiler. Without storage, as much memory is taken as with it.

    Args:
        tensors: the elements, of any shape; how many of them are selected, one to all; what is added to them first, in
            place; 1-D uint8 memory that receives float32 values and then int32 indices, both in the order of the
            indices; and what is checked: what is "added", before anything is done, or the "sum", before anything is
            selected.
        takes: whether the selected elements become zero.
    """
    compiled = library()
    shapes = [(dense.numel(), k) for dense, k, *_ in tensors]
    there = [one for dense, _, added, _, _ in tensors for one in (dense, added) if one is not None and not one.is_meta]
    suited = suits(*there) and all(dense.dtype == torch.float32 for dense, *_ in tensors)
    if compiled is None or not suited or not all(0 < k <= n < 1 << 31 for n, k in shapes):
        return None
    nbytes = max(_scan(*shape)[-1] for shape in shapes)
    scratch = torch.empty(nbytes, dtype=torch.uint8, device="cpu" if there else "meta")  # whatever is the default
    if scratch.is_meta:  # a plan, which counts memory
        return [1] * len(tensors)
    structures, room = [], scratch.data_ptr()
    for (dense, k, added, packed, check), shape in zip(tensors, shapes, strict=True):
        pointers = dense.data_ptr(), 0 if added is None else added.data_ptr()
        numbers = *shape, *_scan(*shape)[:-1], threads(shape[0]), takes, ("", "sum", "added").index(check)
        to = packed.data_ptr()
        structures.append(MEMBERS.pack(*pointers, *numbers, room, to, to + BYTES // 2 * k))
    statuses = array("i", bytes(4 * len(tensors)))
    compiled.resireduce_largest_each(b"".join(structures), len(tensors), statuses.buffer_info()[0])
    return [*statuses]


@cache
def _scan(n: int, k: int) -> tuple[int, int, int, int]:
    """Return the step of a sample of `n` elements, the border's rank in it, for how many candidates there is room, and
    the bytes for them; no room if the sample would be too small, so that all elements are counted.

    The `k` largest reach the border very probably, and few others do: it is four standard errors low. The sample is as
    sparse as the room for those that reach the border allows, and no sparser than pays: each element of the sample is
    read by itself, and so is each that reaches the border.
    """
    nbytes = 13 * min(n, k + max(k // 4, GROUP if n > GROUP * PIECES else max(SMALLEST, n // PIECES)))
    room = min(n, nbytes // 9)  # two numbers for each, and a byte for what is counted
    step = coprime_step(n, max(SPARSEST, n // SAMPLES, n // (2 * room) + 1))
    while n // step > max(2048, 4 * (k * step) ** 0.5):
        sparser = coprime_step(n, step + step // 4)
        if _most_reaching(k, sparser) > room:
            break
        step = sparser
    size = -(-n // step)
    rank = _rank(k / n * size)
    return (step, rank, room, nbytes) if rank < size and n <= GROUP // 4 * room else (1, 0, 0, 4 * -(-n // GROUP))


def _rank(expected: float) -> int:
    """Return the rank of the border in a sample that has `expected` of the largest elements."""
    return int(expected + 4 * expected**0.5 + 4)


def _most_reaching(k: int, step: int) -> float:
    """Return an upper bound of how many elements reach the border found in a sample of every `step`-th element."""
    rank = _rank(k / step)
    most: float = step * (rank + 4 * rank**0.5)
    return most


# --- Elements that were sent are added to their places by one call of compiled code or one kernel: calls cost time ---


def in_one_launch(tensors: Sequence[Tensor]) -> bool:
    """Return whether kernels on a GPU take `tensors` together: of one dtype, none empty, of 2^31 elements in all."""
    if not in_triton(*tensors):
        return False
    alike = all(one.dtype == tensors[0].dtype and one.numel() for one in tensors)
    return alike and sum(one.numel() for one in tensors) < 2 * LARGEST


SENT = Struct("Pq2Pqfi0P")
"""Layout of a structure of arguments: what one rank sent of one tensor."""


def add_sent_each_(sent: Sequence[tuple[Tensor, Sequence[tuple[Tensor, int]]]], scale: float, zero: bool) -> bool:
    """Add `scale` x what all ranks sent of several tensors to its places in them; return whether that was done.

    False, and nothing is done, for what is not contiguous float32, where there is neither compiled code for the CPU nor
    Triton for the GPU, or if on a CPU an index is none of its tensor.

    Args:
        sent: each tensor, and what each rank sent of it: values and their int32 indices, as 1-D uint8, and how many.
        scale: a factor of the values; the product is rounded before it is added.
        zero: whether the tensors are set to zeros before.
    """
    targets, parts = [dense for dense, _ in sent], [part for _, own in sent for part in own]
    if any(packed.nbytes < BYTES * count for packed, count in parts):
        return False
    if targets[0].dtype == torch.float32 and all(count for _, count in parts) and in_one_launch(targets):
        _add_on_gpu(targets, [own for _, own in sent], scale, zero)
        return True
    compiled, known = library(), all(packed.is_cpu and packed.is_contiguous() for packed, _ in parts)
    if compiled is None or not known or not suits(*targets):
        return False
    structures = []
    for dense, own in sent:
        to, size = dense.data_ptr(), dense.numel()
        for number, (packed, count) in enumerate(own):
            values = packed.data_ptr()
            zeroes = zero and not number
            structures.append(SENT.pack(to, size, values, values + BYTES // 2 * count, count, scale, zeroes))
    return bool(compiled.resireduce_add_sent_each(b"".join(structures), len(structures)))


def _add_on_gpu(targets: list[Tensor], sent: list[Sequence[tuple[Tensor, int]]], scale: float, zero: bool) -> None:
    """Do so by a launch for each rank, or for each rank and tensor where a rank's parts are not one message."""
    from resireduce.kernels.gpu import bucket

    if zero:
        private.zero_each_(targets)
    for parts in zip(*sent, strict=True):  # one rank after the other
        ends = [packed.data_ptr() + packed.nbytes for packed, _ in parts]
        if all(end == packed.data_ptr() for end, (packed, _) in zip(ends, parts[1:], strict=False)):
            whole = parts[0][0].as_strided((sum(packed.nbytes for packed, _ in parts),), (1,))
            bucket.add_topk_(targets, [count for _, count in parts], whole, scale)
        else:
            for target, (packed, count) in zip(targets, parts, strict=True):
                bucket.add_topk_([target], [count], packed, scale)
