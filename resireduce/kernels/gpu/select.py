"""The k largest magnitudes by a radix selection, which asks the device for no value.

Magnitudes are in the order of their bits. The k-th largest is found eight bits at a time, from the highest: how many
elements have each value of these bits, among those that agree with what is known of it, says what they are in it. Then
each block of elements counts those above it and those equal to it, which says where it writes what it chooses.
"""

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl

DIGIT, BINS = 8, 256
"""Bits that one pass over the elements settles, and how many values they have."""
TILE, TILES = 4096, 16
"""Elements that are looked at at once, a power of two; and so many of these share one count of values."""


@jit
def _border(counts, wanted, ROWS: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """By the first ROWS of `counts`: leading bits of the `wanted`-th largest, its number among those, and theirs."""
    bins = tl.arange(0, 256)
    prefix, ties = 0, 0
    for row in tl.static_range(ROWS):
        count = tl.load(counts + row * 256 + bins)
        reached = tl.sum(count) - tl.cumsum(count, 0) + count >= wanted
        digit = tl.sum(reached.to(tl.int32)) - 1
        wanted = wanted - tl.sum(tl.where(reached, 0, count))
        ties = tl.sum(tl.where(bins == digit, count, 0))
        prefix = prefix * (256 if row * 8 + 8 <= BITS else 128) + digit
    return prefix, wanted, ties


@jit
def _keys(values, at, n, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Magnitudes as numbers of BITS bits: without the sign."""
    return tl.load(values + at, mask=at < n, other=0).to(tl.int32) & ((1 << BITS) - 1)


@jit
def _histogram(values, counts, n, k, ROW: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add to ROW of `counts` how often the next bits have each value, where the ones before are the border's."""
    WIDTH: tl.constexpr = 8 if ROW * 8 + 8 <= BITS else 7
    SHIFT: tl.constexpr = BITS - ROW * 8 - WIDTH
    prefix, _, _ = _border(counts, k, ROW, BITS)
    bins = tl.arange(0, 256)
    total = tl.zeros([256], tl.int32)
    for tile in range(TILES):
        at = (tl.program_id(0) * TILES + tile) * TILE + tl.arange(0, TILE)
        key = _keys(values, at, n, BITS)
        counted = (at < n) & ((key >> (SHIFT + WIDTH)) == prefix)
        total += tl.histogram(tl.where(counted, (key >> SHIFT) & ((1 << WIDTH) - 1), 0), 256)
        total -= tl.where(bins == 0, TILE - tl.sum(counted.to(tl.int32)), 0)  # those not meant are counted as zeros
    tl.atomic_add(counts + ROW * 256 + bins, total, mask=total > 0, sem="relaxed")


@jit
def _settle(counts, border, k, ROWS: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the border, and of the elements that are equal to it how many, the first, are left out."""
    bits, wanted, ties = _border(counts, k, ROWS, BITS)
    tl.store(border, bits)
    tl.store(border + 1, ties - wanted)


@jit
def _count(values, border, found, n, blocks, BITS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write how many elements of each block are above the border, and behind all these how many are equal to it."""
    limit = tl.load(border)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    key = _keys(values, at, n, BITS)
    tl.store(found + tl.program_id(0), tl.sum(((at < n) & (key > limit)).to(tl.int32)))
    tl.store(found + blocks + tl.program_id(0), tl.sum(((at < n) & (key == limit)).to(tl.int32)))


@jit
def _write(values, border, until, out, n, blocks, BITS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the indices of those above the border, and of those equal to it the last."""
    limit, left_out = tl.load(border), tl.load(border + 1)
    block = tl.program_id(0)
    above_before = tl.load(until + block - 1, mask=block > 0, other=0)
    equal_before = tl.load(until + blocks + block - 1, mask=block > 0, other=0)
    at = block * TILE + tl.arange(0, TILE)
    key = _keys(values, at, n, BITS)
    equal = (at < n) & (key == limit)
    number = equal_before + tl.cumsum(equal.to(tl.int32), 0) - 1
    chosen = ((at < n) & (key > limit)) | (equal & (number >= left_out))
    first = above_before + tl.maximum(equal_before - left_out, 0)
    tl.store(out + first + tl.cumsum(chosen.to(tl.int32), 0) - 1, at.to(tl.int64), mask=chosen)


def select(flat: Tensor, k: int, tile: int = TILE, tiles: int = TILES) -> Tensor:
    """Return the indices (int64, ascending) of the `k` largest magnitudes of 1-D `flat`, as `largest_magnitudes` does.

    flat: contiguous float32, float16 or bfloat16 without NaN, of 2^30 elements at most, and more than `k`. tile: how
    many elements are looked at at once, a power of two; tiles: how many of these share one count. Neither changes what
    is chosen. Held beside `flat` and the result: 16 bytes for each `tile` elements, and some thousand.
    """
    n, bits = flat.numel(), 8 * flat.element_size() - 1
    rows, blocks = -(-bits // DIGIT), -(-n // tile)
    values = flat.view(torch.int32 if bits == 31 else torch.int16)
    counts = torch.zeros(rows * BINS, dtype=torch.int32, device=flat.device)
    border = torch.empty(2, dtype=torch.int32, device=flat.device)
    found = torch.empty(2, blocks, dtype=torch.int32, device=flat.device)
    out = torch.empty(k, dtype=torch.int64, device=flat.device)
    with on_device(flat):
        for row in range(rows):
            _histogram[(-(-blocks // tiles),)](values, counts, n, k, row, bits, tile, tiles, **EXACT)
        _settle[(1,)](counts, border, k, rows, bits, **EXACT)
        _count[(blocks,)](values, border, found, n, blocks, bits, tile, **EXACT)
        until = found.cumsum(1, dtype=torch.int32)
        _write[(blocks,)](values, border, until, out, n, blocks, bits, tile, **EXACT)
    return out
