"""The few elements of a large tensor that may be among its largest, found by a sample without reading values back.

Later kernels process these few in place of all elements if they are enough and there was room for all of them. The
device decides that, and the selection is the same either way.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, tl
from resireduce.kernels.gpu.marks import first_in, ones_in, packed, spread
from resireduce.pieces import coprime_step

NARROW = 1 << 22
"""Elements of a tensor from which on the additional launches pay."""
SAMPLES = 1 << 17
"""About how many elements are in a sample."""
TILE = 4096
"""Elements that are processed at once, a power of two."""
PART = 1024
"""Elements of a tile that `_write_near` reads at once: as many as one warp holds, so that no warp waits for another."""
WRITING = EXACT | {"num_warps": 1}
"""How `_write_near` is launched."""


@dataclass(frozen=True)
class Near:
    """The elements of a tensor that reach a border, in the order of their places, as far as there is room."""

    keys: Tensor
    """Their bits, int32 or int16."""
    places: Tensor
    """Which elements they are: int32."""
    total: Tensor
    """How many there are, even if that exceeds the room: one number, int32."""


@jit
def size_of(total, n, k, room, NEAR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return how many elements are to be processed, and whether these are the near ones.

    total: address of the number of near ones; n: number of all elements; k: how many are to be selected; room: how many
    near ones are held at most; NEAR: whether near ones were looked for.
    """
    size, few = n, False
    if NEAR:
        count = tl.load(total)
        few = (count >= k) & (count <= room)
        size = tl.where(few, count, n)
    return size, few


@jit
def keys_at(values, near, at, size, few, BITS: tl.constexpr, NEAR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the magnitudes of elements as numbers of BITS bits: without the sign.

    values, near: bits of all elements, and of the near ones; at: indices of elements; size, few: as from `size_of`;
    NEAR: as there.
    """
    if NEAR:
        key = tl.load(values + at, mask=(at < size) & (few == 0), other=0)
        key += tl.load(near + at, mask=(at < size) & few, other=0)
    else:
        key = tl.load(values + at, mask=at < size, other=0)
    return key.to(tl.int32) & ((1 << BITS) - 1)


@jit
def sum_at(values, added, at, size, first):  # type: ignore[no-untyped-def]
    """Return the bits of elements, to which `added` is added first, in place, if this is the `first` time.

    values: bits of all elements; added: numbers of the dtype that the values have; at: indices of elements; size: their
    number.
    """
    bits = tl.load(values + at, mask=at < size, other=0)
    more = tl.load(added + at, mask=(at < size) & first, other=0.0)
    one = bits.to(more.dtype, bitcast=True).to(tl.float32)
    both = (one + more.to(tl.float32)).to(more.dtype).to(bits.dtype, bitcast=True)
    tl.store(values + at, both, mask=(at < size) & first)
    return tl.where(first, both, bits).to(tl.int32)


@jit
def _count_near(values, added, border, found, n, BITS: tl.constexpr, TILE: tl.constexpr, SUM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write how many elements of each block reach the border; SUM: after adding `added`, in place."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    if SUM:
        key = sum_at(values, added, at, n, True) & ((1 << BITS) - 1)
    else:
        key = keys_at(values, values, at, n, False, BITS, False)
    tl.store(found + tl.program_id(0), tl.sum(((at < n) & (key >= tl.load(border))).to(tl.int32)))


@jit
def _write_near(  # type: ignore[no-untyped-def]
    values, border, until, keys, places, n, room, BITS: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr
):
    """Write the bits and the places of those that reach the border, as far as there is room.

    A block is read PART elements at a time, until as many are found as `until` says that it has.
    """
    block = tl.program_id(0)
    number = tl.load(until + block - 1, mask=block > 0, other=0)
    end, limit = tl.minimum(tl.load(until + block), room), tl.load(border)
    row, bit = tl.arange(0, PART // 32), tl.arange(0, 32)
    first = block * TILE
    while (number < end) & (first < n):
        at = first + row[:, None] * 32 + bit[None, :]
        key = keys_at(values, values, at, n, False, BITS, False)
        word, reached = spread(packed((at < n) & (key >= limit), bit))
        count = ones_in(word)
        into = number + reached - count
        most, done = tl.max(count), 0
        while done < most:  # few of 32 reach it: each number has its next one written
            place = first + row * 32 + first_in(word)
            fits = (word != 0) & (into < room)
            one = tl.load(values + place, mask=fits, other=0).to(tl.int32) & ((1 << BITS) - 1)
            tl.store(keys + into, one.to(keys.dtype.element_ty), mask=fits)
            tl.store(places + into, place, mask=fits)
            word = word & (word - 1)
            into += 1
            done += 1
        number += tl.sum(count)
        first += PART


def sample_of(n: int, k: int) -> tuple[int, int, int] | None:
    """Return the step of a sample of `n` elements, the border's rank in it, and the room for near elements.

    The rank, from the largest, is that at which the `k`-th largest of all is expected, and four standard errors more.
    The room exceeds the expected number by five standard errors. None for too few elements, or if too many would be
    near.
    """
    step = coprime_step(n, n // SAMPLES)
    expected = k / step
    place = int(expected + 4 * sqrt(expected) + 4)
    room = int(step * (place + 5 * sqrt(place)))
    return None if n < NARROW or room > n // 4 else (step, place, room)


def find_near(flat: Tensor, border: Tensor, room: int, added: Tensor | None = None, tile: int = TILE) -> Near:
    """Return the elements of 1-D `flat` whose magnitude, as bits, is at least `border`, one number.

    room: how many are kept. added: like `flat`, to which it is added first, in place, in the pass that counts them.
    tile: how many are processed at once, a power of two.
    """
    n, values, bits = flat.numel(), bits_of(flat), 8 * flat.element_size() - 1
    blocks = -(-n // tile)
    found = torch.empty(blocks, dtype=torch.int32, device=flat.device)
    keys = torch.empty(room, dtype=values.dtype, device=flat.device)
    places = torch.empty(room, dtype=torch.int32, device=flat.device)
    more, summed = values if added is None else added, added is not None
    _count_near[(blocks,)](values, more, border, found, n, bits, tile, summed, **EXACT)
    until = found.cumsum(0, dtype=torch.int32)
    _write_near[(blocks,)](values, border, until, keys, places, n, room, bits, tile, min(tile, PART), **WRITING)
    return Near(keys, places, until[-1:])


def bits_of(flat: Tensor) -> Tensor:
    """Return the elements of `flat` as numbers, int32 or int16, of which all bits but the highest are the magnitude."""
    return flat.view(torch.int32 if flat.element_size() == 4 else torch.int16)


def given(values: Tensor, near: Near | None) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return keys, places, number and room of the near ones, for kernels; `values` in their place without `near`."""
    return (values, values, values, 0) if near is None else (near.keys, near.places, near.total, near.keys.numel())
