"""The k largest magnitudes of a tensor of middling size in one launch, by programs that wait for each other.

As in `launches.py` the k-th largest is found eight bits at a time. Each program has a share of the elements, one piece
of them; after each eight bits it waits until all have counted theirs. What it counted of its own share then says how
many of it are above the k-th largest and equal to it, so that a last look at the share can write what is chosen.
"""

import os

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import jit, on_device, tl
from resireduce.kernels.gpu.marks import choose
from resireduce.kernels.gpu.near import Near, bits_of, given, keys_at, size_of, sum_at
from resireduce.kernels.gpu.together import FIELD, PROGRAMS, programs_for, share_of, together, wait
from resireduce.kernels.on_gpu import IN_LAUNCHES, SWITCH

MOST = 1 << 24
"""Elements above which few programs are assumed to be slower than many launches; this was not measured."""
TILE = 4096
"""Elements that a program processes at once, a power of two of 2^14 at most."""
LEFT_OUT: set[tuple[torch.device, torch.dtype]] = set()
"""Devices and dtypes for which this form has failed its check."""


@jit
def find(  # type: ignore[no-untyped-def]
    values,
    added,
    near,
    state,
    size,
    few,
    k,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    NEAR: tl.constexpr,
    SUM: tl.constexpr,
):
    """Return the bits of the k-th largest, how many elements equal to it are left out, and how many of the share are
    above it, and equal.

    values, near, size, few, BITS, NEAR: as of `keys_at`. SUM: `added` is added to `values` first. state: zeros; counts
    of each eight bits, then of arrivals. TILE: elements that are looked at at once.
    """
    ROWS: tl.constexpr = (BITS + 1) // 8
    first, tiles = share_of(size, TILE)
    bins = tl.arange(0, 256)
    prefix, wanted, above, equal, ties = 0, k, 0, 0, 0
    for row in range(ROWS):
        shift = (ROWS - 1 - row) * 8
        total, others = tl.zeros([256], tl.int32), tl.zeros([TILE], tl.int32)
        tile = 0
        while tile < tiles:  # no range: the interpreter knows none of numbers of the device
            at = first + tile * TILE + tl.arange(0, TILE)
            tile += 1
            if SUM:
                key = sum_at(values, added, at, size, row == 0) & ((1 << BITS) - 1)
            else:
                key = keys_at(values, near, at, size, few, BITS, NEAR)
            counted = (at < size) & (((key >> shift) >> 8) == prefix)
            total += tl.histogram(tl.where(counted, (key >> shift) & 255, 0), 256)
            others += 1 - counted.to(tl.int32)
        total -= tl.where(bins == 0, tl.sum(others), 0)  # those not meant were counted as zeros
        tl.atomic_add(state + row * 256 + bins, total, mask=total > 0, sem="relaxed")
        wait(state + ROWS * 256, row + 1)
        count = tl.load(state + row * 256 + bins, volatile=True)
        reached = tl.sum(count) - tl.cumsum(count, 0) + count >= wanted
        digit = tl.sum(reached.to(tl.int32)) - 1
        wanted = wanted - tl.sum(tl.where(reached, 0, count))
        ties = tl.sum(tl.where(bins == digit, count, 0))
        above = above + tl.sum(tl.where(bins > digit, total, 0))
        equal = tl.sum(tl.where(bins == digit, total, 0))
        prefix = prefix * 256 + digit
    return prefix, ties - wanted, above, equal


@jit
def _border(values, state, border, n, k, BITS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the bits of the k-th largest, and how many of those equal to it are left out."""
    bits, left_out, _, _ = find(values, values, values, state, n, False, k, BITS, TILE, False, False)
    if tl.program_id(0) == 0:
        tl.store(border, bits)
        tl.store(border + 1, left_out)


@jit
def _select(  # type: ignore[no-untyped-def]
    values,
    added,
    near,
    places,
    total_near,
    state,
    taken,
    out,
    n,
    k,
    room,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    NEAR: tl.constexpr,
    SUM: tl.constexpr,
    TAKE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Write the indices of those above the k-th largest, and of those equal to it the last. TAKE: take these out."""
    ROWS: tl.constexpr = (BITS + 1) // 8
    FIELD: tl.constexpr = 32
    size, few = size_of(total_near, n, k, room, NEAR)
    limit, left_out, above, equal = find(values, added, near, state, size, few, k, BITS, TILE, NEAR, SUM)
    found, programs = state + ROWS * 256 + FIELD, tl.num_programs(0)
    tl.store(found + tl.program_id(0), above)
    tl.store(found + programs + tl.program_id(0), equal)
    wait(state + ROWS * 256, ROWS + 1)
    others = tl.arange(0, PROGRAMS)
    earlier = others < tl.program_id(0)
    before = tl.sum(tl.load(found + others, mask=earlier, other=0, volatile=True))
    equal_before = tl.sum(tl.load(found + programs + others, mask=earlier, other=0, volatile=True))
    first, tiles = share_of(size, TILE)
    tile = 0
    while tile < tiles:
        at = first + tile * TILE + tl.arange(0, TILE)
        tile += 1
        key = keys_at(values, near, at, size, few, BITS, NEAR)
        chosen, into, above, equal = choose(key, at < size, limit, left_out, before, equal_before, TILE)
        place = at
        if NEAR:
            place = tl.where(few, tl.load(places + at, mask=chosen & few, other=0), at)
        tl.store(out + into, place.to(out.dtype.element_ty), mask=chosen)
        if TAKE:
            bits = tl.load(values + place, mask=chosen, other=0)
            tl.store(taken + into, bits, mask=chosen)
            tl.debug_barrier()  # all are read before any becomes zero
            tl.store(values + place, tl.zeros_like(bits), mask=chosen)
        before += above
        equal_before += equal


def used(flat: Tensor, size: int) -> bool:
    """Return whether this form is used for `flat`, if about `size` of its elements are processed."""
    allowed = size <= MOST and (flat.device, flat.dtype) not in LEFT_OUT
    return allowed and os.environ.get(SWITCH) != IN_LAUNCHES


def find_border(flat: Tensor, k: int, tile: int = TILE) -> Tensor:
    """Return the bits of the `k`-th largest magnitude of 1-D `flat`, and how many equal to it are left out: int32.

    tile: elements that are processed at once, a power of two.
    """
    n, bits = flat.numel(), 8 * flat.element_size() - 1
    border = torch.empty(2, dtype=torch.int32, device=flat.device)
    with on_device(flat):
        grid, state = _start(flat, n, bits, tile)
        _border[grid](bits_of(flat), state, border, n, k, bits, tile, **together(flat))
    return border


def selected(
    flat: Tensor,
    k: int,
    near: Near | None = None,
    added: Tensor | None = None,
    into: tuple[Tensor, Tensor] | None = None,
    tile: int = TILE,
) -> Tensor:
    """Return the indices (int64, ascending) of the `k` largest magnitudes of 1-D `flat`, among those that are `near`.

    added: like `flat`, to which it is added first, in place; not together with `near`. into: tensors for the `k`
    elements, of the dtype of `flat`, and for their indices, int32 or int64, which are then returned; the elements of
    `flat` become zero. tile: elements that are processed at once. Extra memory: some thousand bytes, and eight for each
    program.
    """
    n, values, bits = flat.numel(), bits_of(flat), 8 * flat.element_size() - 1
    keys, places, total, room = given(values, near)
    taken, out = (values, torch.empty(k, dtype=torch.int64, device=flat.device)) if into is None else into
    more, what = values if added is None else added, (near is not None, added is not None, into is not None)
    with on_device(flat):
        grid, state = _start(flat, room or n, bits, tile)
        pointers = values, more, keys, places, total, state, bits_of(taken), out
        _select[grid](*pointers, n, k, room, bits, tile, *what, PROGRAMS, **together(flat))
    return out


def _start(flat: Tensor, size: int, bits: int, tile: int) -> tuple[tuple[int], Tensor]:
    """Return how many programs process about `size` elements, and the zeros that they share."""
    programs = programs_for(flat.device, -(-size // tile))
    return (programs,), torch.zeros((bits + 1) * 32 + FIELD + 2 * programs, dtype=torch.int32, device=flat.device)
