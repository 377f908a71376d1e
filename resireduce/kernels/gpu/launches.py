"""The k largest magnitudes by a radix selection in several launches, each of as many programs as there are blocks.

Magnitudes have the order of their bits. The bits of the k-th largest are found eight at a time, from the highest, by
counting how many elements have each value of these eight bits, among those that agree in the higher ones. Then each
block of elements counts those above it and those equal to it, which gives the place where the block writes those that
it selects.
"""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl
from resireduce.kernels.gpu.marks import choose
from resireduce.kernels.gpu.near import Near, bits_of, given, keys_at, size_of

DIGIT, BINS = 8, 256
"""Bits that one pass over the elements settles, and how many values they have."""
TILE, TILES = 4096, 16
"""Elements that are processed at once, a power of two; and how many such tiles share one count of values."""


@jit
def _border(counts, wanted, rows):  # type: ignore[no-untyped-def]
    """Return, from the first `rows` of `counts`, the leading bits of the `wanted`-th largest, its rank among the
    elements with these bits, and their number."""
    bins = tl.arange(0, 256)
    prefix, ties, row = 0, 0, 0
    while row < rows:
        count = tl.load(counts + row * 256 + bins)
        reached = tl.sum(count) - tl.cumsum(count, 0) + count >= wanted
        digit = tl.sum(reached.to(tl.int32)) - 1
        wanted = wanted - tl.sum(tl.where(reached, 0, count))
        ties = tl.sum(tl.where(bins == digit, count, 0))
        prefix = prefix * 256 + digit
        row += 1
    return prefix, wanted, ties


@jit
def _histogram(  # type: ignore[no-untyped-def]
    values,
    near,
    total_near,
    counts,
    n,
    k,
    room,
    row,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    NEAR: tl.constexpr,
):
    """Add to `row` of `counts` how often the next bits have each value, if the higher bits are the border's."""
    shift = BITS - 7 - row * 8
    size, few = size_of(total_near, n, k, room, NEAR)
    first = tl.program_id(0) * TILES * TILE
    if first < size:
        prefix, _, _ = _border(counts, k, row)
        bins = tl.arange(0, 256)
        total = tl.zeros([256], tl.int32)
        for tile in range(TILES):
            at = first + tile * TILE + tl.arange(0, TILE)
            key = keys_at(values, near, at, size, few, BITS, NEAR)
            counted = (at < size) & (((key >> shift) >> 8) == prefix)
            total += tl.histogram(tl.where(counted, (key >> shift) & 255, 0), 256)
            total -= tl.where(bins == 0, TILE - tl.sum(counted.to(tl.int32)), 0)  # those not meant are counted as zeros
        tl.atomic_add(counts + row * 256 + bins, total, mask=total > 0, sem="relaxed")


@jit
def _settle(counts, border, k, rows):  # type: ignore[no-untyped-def]
    """Write the border, and how many of the elements equal to it, the first ones, are left out."""
    bits, wanted, ties = _border(counts, k, rows)
    tl.store(border, bits)
    tl.store(border + 1, ties - wanted)


@jit
def _count(  # type: ignore[no-untyped-def]
    values,
    near,
    total_near,
    border,
    found,
    n,
    k,
    room,
    blocks,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    NEAR: tl.constexpr,
):
    """Write how many elements of each block are above the border and, after these numbers, how many equal it."""
    limit = tl.load(border)
    size, few = size_of(total_near, n, k, room, NEAR)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    key = keys_at(values, near, at, size, few, BITS, NEAR)
    tl.store(found + tl.program_id(0), tl.sum(((at < size) & (key > limit)).to(tl.int32)))
    tl.store(found + blocks + tl.program_id(0), tl.sum(((at < size) & (key == limit)).to(tl.int32)))


@jit
def _write(  # type: ignore[no-untyped-def]
    values,
    near,
    places,
    total_near,
    border,
    until,
    out,
    n,
    k,
    room,
    blocks,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    NEAR: tl.constexpr,
):
    """Write the indices of the elements above the border, and of the last ones of those equal to it."""
    size, few = size_of(total_near, n, k, room, NEAR)
    block = tl.program_id(0)
    if block * TILE < size:
        limit, left_out = tl.load(border), tl.load(border + 1)
        above_before = tl.load(until + block - 1, mask=block > 0, other=0)
        equal_before = tl.load(until + blocks + block - 1, mask=block > 0, other=0)
        at = block * TILE + tl.arange(0, TILE)
        key = keys_at(values, near, at, size, few, BITS, NEAR)
        chosen, into, _, _ = choose(key, at < size, limit, left_out, above_before, equal_before, TILE)
        place = at
        if NEAR:
            place = tl.where(few, tl.load(places + at, mask=chosen & few, other=0), at)
        tl.store(out + into, place.to(tl.int64), mask=chosen)


def find_border(flat: Tensor, k: int, near: Near | None = None, tile: int = TILE, tiles: int = TILES) -> Tensor:
    """Return the bits of the `k`-th largest magnitude of 1-D `flat`, and how many equal to it are left out: int32.

    near: the elements to process, if they are enough. tile, tiles: as for `selected`.
    """
    n, values, bits = flat.numel(), bits_of(flat), 8 * flat.element_size() - 1
    rows = -(-bits // DIGIT)
    counts = torch.zeros(rows * BINS, dtype=torch.int32, device=values.device)
    border = torch.empty(2, dtype=torch.int32, device=values.device)
    keys, _, total, room = given(values, near)
    grid = (-(-n // (tile * tiles)),)
    with on_device(flat):
        for row in range(rows):
            _histogram[grid](values, keys, total, counts, n, k, room, row, bits, tile, tiles, near is not None, **EXACT)
        _settle[(1,)](counts, border, k, rows, **EXACT)
    return border


def selected(flat: Tensor, k: int, near: Near | None = None, tile: int = TILE, tiles: int = TILES) -> Tensor:
    """Return the indices (int64, ascending) of the `k` largest magnitudes of 1-D `flat`, among those that are `near`.

    tile: how many elements are processed at once, a power of two; tiles: how many tiles share one count. Extra memory:
    16 bytes for each `tile` elements, and some thousand.
    """
    n, values, bits = flat.numel(), bits_of(flat), 8 * flat.element_size() - 1
    blocks = -(-n // tile)
    border = find_border(flat, k, near, tile, tiles)
    found = torch.empty(2, blocks, dtype=torch.int32, device=flat.device)
    out = torch.empty(k, dtype=torch.int64, device=flat.device)
    keys, places, total, room = given(values, near)
    sizes, known = (n, k, room, blocks), (bits, tile, near is not None)
    with on_device(flat):
        _count[(blocks,)](values, keys, total, border, found, *sizes, *known, **EXACT)
        until = found.cumsum(1, dtype=torch.int32)
        _write[(blocks,)](values, keys, places, total, border, until, out, *sizes, *known, **EXACT)
    return out
