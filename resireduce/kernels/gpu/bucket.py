"""The k largest magnitudes of each tensor of a bucket: in a number of launches that does not depend on the tensors.

A launch goes over the elements of all tensors, a chunk of one tensor in each program. Magnitudes have the order of
their bits. Those of the k-th largest are found eight at a time, from the highest, by counting how many elements have
each value of these eight bits, among those that agree in the higher ones. Then each chunk counts its elements above the
k-th largest and those equal to it, which gives the places where it writes those that are selected. What is left of
tensors that share a residual is folded into it in one more launch. A kernel is told by `like`, a pointer, of which
dtype the tensors in its table are. All are on one device, contiguous, of float32, float16 or bfloat16, and not empty.
"""

from collections.abc import Iterable, Sequence
from ctypes import c_float
from functools import lru_cache
from itertools import accumulate, pairwise, zip_longest

import numpy as np
import torch
from torch import Tensor

from resireduce.kernels.gpu.one_pass import TINY, inverse, jit, launch, times, tl

TILE = 4096
"""Elements that a program processes at once, a power of two of 2^14 at most; twice, for its chunk."""
SENT_TILE = 4096
"""Elements of a tensor to which a program adds what was sent, a power of two."""
Row = tuple[int, int, int, int, int, int, int]
"""What a table has for each tensor: see `row_of`."""
INDEX_BYTES = 4


@jit
def _chunk_of(table, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the number of the tensor of this program's chunk, its row in `table`, where the chunk begins and ends in
    it, and how many elements it has."""
    own = tl.load(table + tl.program_id(0))
    row = table + tl.num_programs(0) + own * 8
    first, n = ((tl.program_id(0) - tl.load(row + 7)) * CHUNK).to(tl.int32), tl.load(row + 2).to(tl.int32)
    return own, row, first, tl.minimum(first + CHUNK, n), n


@jit
def _threshold(counts, wanted, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return, from `ROWS` counts of a tensor, the leading bits of its `wanted`-th largest, its rank among the elements
    with these bits, and their number."""
    bins = tl.arange(0, 256)
    prefix, ties = 0, 0
    for row in tl.static_range(ROWS):
        count = tl.load(counts + row * 256 + bins)
        reached = tl.sum(count) - tl.cumsum(count, 0) + count >= wanted
        digit = tl.sum(reached.to(tl.int32)) - 1
        wanted = wanted - tl.sum(tl.where(reached, 0, count))
        ties = tl.sum(tl.where(bins == digit, count, 0))
        prefix = prefix * 256 + digit
    return prefix, wanted, ties


@jit
def _look_for_non_finite(table, like, spoilt, counts, ROWS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write 1 to `spoilt` for each tensor whose gradient holds NaN or infinity, and zeros to its `ROWS` of `counts`."""
    own, row, first, end, n = _chunk_of(table, 2 * TILE)
    gradient = tl.load(row + 6)
    if first == 0:
        for line in tl.static_range(ROWS):
            tl.store(counts + (own * ROWS + line) * 256 + tl.arange(0, 256), tl.zeros([256], tl.int32))
    if gradient != 0:
        fine = tl.full([TILE], 1, tl.int32)
        while first < end:  # no range: the interpreter knows none of numbers of the device
            at = first + tl.arange(0, TILE)
            value = tl.load(gradient.to(like.dtype) + at, mask=at < n, other=0.0).to(tl.float32)
            fine = fine & (tl.abs(value) < float("inf")).to(tl.int32)
            first += TILE
        if tl.min(fine) == 0:
            tl.store(spoilt + own, 1)


@jit
def _blank_spoilt(table, like, spoilt, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write zeros to the gradients that are `spoilt`."""
    own, row, first, end, n = _chunk_of(table, 2 * TILE)
    if tl.load(spoilt + own) != 0:
        gradient = tl.load(row + 6).to(like.dtype)
        while first < end:
            at = first + tl.arange(0, TILE)
            tl.store(gradient + at, tl.zeros([TILE], like.dtype.element_ty), mask=at < n)
            first += TILE


@jit
def _histogram(table, like, bits, spoilt, answers, counts, ROW: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add to row `ROW` of each tensor's `counts` how often the next bits have each value, where the higher bits are
    those of the k-th largest. The first time, sums are formed before: a gradient that is `spoilt` counts as zeros, and
    `answers` receives a copy of that. bits: a pointer to integers as wide as the elements."""
    ROWS: tl.constexpr = (BITS + 1) // 8
    own, row, first, end, n = _chunk_of(table, 2 * TILE)
    residual, gradient = tl.load(row), tl.load(row + 1)
    prefix, _, _ = _threshold(counts + own * ROWS * 256, tl.load(row + 3).to(tl.int32), ROW)
    there, added = n, n
    if ROW == 0:
        is_spoilt, checked = tl.load(spoilt + own) != 0, tl.load(row + 6)
        there = tl.where(is_spoilt & (checked == residual), 0, n)
        added = tl.where(is_spoilt & (checked == gradient), 0, n)
        tl.store(answers + own, is_spoilt.to(tl.int32), mask=first == 0)
    bins, total = tl.arange(0, 256), tl.zeros([256], tl.int32)
    while first < end:
        at = first + tl.arange(0, TILE)
        if ROW == 0:
            held = tl.load(residual.to(like.dtype) + at, mask=at < there, other=0.0)
            if gradient != 0:
                more = tl.load(gradient.to(like.dtype) + at, mask=at < added, other=0.0)
                held = (held.to(tl.float32) + more.to(tl.float32)).to(held.dtype)
                tl.store(residual.to(like.dtype) + at, held, mask=at < n)
            key = held.to(bits.dtype.element_ty, bitcast=True).to(tl.int32) & ((1 << BITS) - 1)
        else:
            key = tl.load(residual.to(bits.dtype) + at, mask=at < n, other=0).to(tl.int32) & ((1 << BITS) - 1)
        digit = key >> (BITS - 7 - ROW * 8)
        counted = (at < n) & ((digit >> 8) == prefix)
        number = tl.sum(counted.to(tl.int32))
        if number > 0:
            total += tl.histogram(tl.where(counted, digit & 255, 0), 256)
            total -= tl.where(bins == 0, TILE - number, 0)  # those not meant are counted as zeros
        first += TILE
    tl.atomic_add(counts + (own * ROWS + ROW) * 256 + bins, total, mask=total > 0, sem="relaxed")


@jit
def _count_selected(table, bits, counts, until, arrived, BITS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Count the elements of each chunk that are above the k-th largest and, after these numbers, those that equal it;
    the last program to come makes running sums of all these numbers, `until` each. arrived: a counter of the programs
    that have come, 0 before and after."""
    ROWS: tl.constexpr = (BITS + 1) // 8
    own, row, first, end, n = _chunk_of(table, 2 * TILE)
    residual, chunks = tl.load(row), tl.num_programs(0)
    limit, _, _ = _threshold(counts + own * ROWS * 256, tl.load(row + 3).to(tl.int32), ROWS)
    above, equal = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
    while first < end:
        at = first + tl.arange(0, TILE)
        key = tl.load(residual.to(bits.dtype) + at, mask=at < n, other=0).to(tl.int32) & ((1 << BITS) - 1)
        above += ((at < n) & (key > limit)).to(tl.int32)
        equal += ((at < n) & (key == limit)).to(tl.int32)
        first += TILE
    tl.store(until + tl.program_id(0), tl.sum(above))
    tl.store(until + chunks + tl.program_id(0), tl.sum(equal))
    tl.debug_barrier()  # both are written
    if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") + 1 == chunks:
        before, start = 0, 0
        while start < 2 * chunks:
            each = start + tl.arange(0, 1024)
            found = tl.load(until + each, mask=each < 2 * chunks, other=0, volatile=True)
            tl.store(until + each, before + tl.cumsum(found, 0), mask=each < 2 * chunks)
            before += tl.sum(found)
            start += 1024
        tl.store(arrived, 0)


@jit
def _write_selected(  # type: ignore[no-untyped-def]
    table, like, bits, indices, counts, until, spoilt, norms, BITS: tl.constexpr, TILE: tl.constexpr, TAKE: tl.constexpr
):
    """Write the indices of those above the k-th largest, and of those equal to it the last.

    until: what `_count_selected` has written. spoilt: becomes 0. TAKE: write their values to `bits`, and leave zeros in
    their places. norms: receives, of what is left, what `_sum_chunks` writes, unless it is None.
    """
    ROWS: tl.constexpr = (BITS + 1) // 8
    own, row, first, end, n = _chunk_of(table, 2 * TILE)
    residual, k = tl.load(row), tl.load(row + 3).to(tl.int32)
    limit, wanted, ties = _threshold(counts + own * ROWS * 256, k, ROWS)
    left_out = ties - wanted  # so many of those equal to it, the first, are not selected
    chunk, chunks, begin = tl.program_id(0), tl.num_programs(0), tl.load(row + 7)
    tl.store(spoilt + own, 0, mask=first == 0)  # for the next step with this table
    before = tl.load(until + chunk - 1, mask=chunk > 0, other=0)
    before -= tl.load(until + begin - 1, mask=begin > 0, other=0)
    equal_before = tl.load(until + chunks + chunk - 1) - tl.load(until + chunks + begin - 1)
    values_at, indices_at = tl.load(row + 4), tl.load(row + 5)
    if TAKE and BITS == 15:  # what pads a tensor's values to 8 bytes
        padding = tl.arange(0, 4)
        tl.store(bits + values_at + k + padding, tl.zeros([4], tl.int16), mask=first + padding < k % 4)
    magnitudes, squares = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    while first < end:
        at = first + tl.arange(0, TILE)
        held = tl.load(residual.to(bits.dtype) + at, mask=at < n, other=0)
        key = held.to(tl.int32) & ((1 << BITS) - 1)
        above, equal = (at < n) & (key > limit), (at < n) & (key == limit)
        # Both counts up to each element, in halves of one number, are formed in rows of 64, each of which one warp has.
        both = tl.reshape(above.to(tl.int32) * 65536 + equal.to(tl.int32), [TILE // 64, 64])
        of_row = tl.sum(both, 1)
        earlier = tl.reshape(tl.cumsum(both, 1) - both + (tl.cumsum(of_row, 0) - of_row)[:, None], [TILE])
        number, sums = equal_before + (earlier & 65535), tl.sum(of_row)
        chosen = above | (equal & (number >= left_out))
        into = before + (earlier >> 16) + tl.maximum(number - left_out, 0)
        tl.store(indices + indices_at + into, at.to(indices.dtype.element_ty), mask=chosen)
        if TAKE:
            tl.store(bits + values_at + into, held, mask=chosen)
            tl.store(residual.to(bits.dtype) + at, tl.zeros_like(held), mask=chosen)
        if norms is not None:
            left = tl.abs(tl.where(chosen, 0.0, held.to(like.dtype.element_ty, bitcast=True).to(tl.float64)))
            magnitudes += left
            squares += left * left
        before += sums >> 16
        equal_before += sums & 65535
        first += TILE
    if norms is not None:
        tl.store(norms + 2 * chunk, tl.sum(magnitudes))
        tl.store(norms + 2 * chunk + 1, tl.sum(squares))


@jit
def _sum_chunks(table, like, norms, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the sum of the magnitudes of each chunk, and that of their squares, to `norms`: float64, side by side."""
    _, row, first, end, n = _chunk_of(table, 2 * TILE)
    values = tl.load(row).to(like.dtype)
    magnitudes, squares = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    while first < end:
        at = first + tl.arange(0, TILE)
        value = tl.abs(tl.load(values + at, mask=at < n, other=0.0).to(tl.float64))
        magnitudes += value
        squares += value * value
        first += TILE
    tl.store(norms + 2 * tl.program_id(0), tl.sum(magnitudes))
    tl.store(norms + 2 * tl.program_id(0) + 1, tl.sum(squares))


@jit
def _mean_norm(norms, chunks, n, phi, rest):  # type: ignore[no-untyped-def]
    """Return phi |x|_1 / n + rest |x|_2 / sqrt(n) of the `n` elements of a tensor, by the sums of its `chunks`."""
    WIDTH: tl.constexpr = 1024  # each program sums all chunks of a tensor
    magnitudes, squares = tl.zeros([WIDTH], tl.float64), tl.zeros([WIDTH], tl.float64)
    start = 0
    while start < chunks:
        each = start + tl.arange(0, WIDTH)
        magnitudes += tl.load(norms + 2 * each, mask=each < chunks, other=0.0)
        squares += tl.load(norms + 2 * each + 1, mask=each < chunks, other=0.0)
        start += WIDTH
    l1, l2 = tl.sum(magnitudes).to(tl.float32), tl.sqrt(tl.sum(squares)).to(tl.float32)
    size, root = n.to(tl.float32).to(tl.float64), tl.sqrt(n.to(tl.float64)).to(tl.float32).to(tl.float64)
    return ((phi * l1).to(tl.float64) / size).to(tl.float32) + ((rest * l2).to(tl.float64) / root).to(tl.float32)


@jit
def _fold(table, like, weights, phi, rest, TINY: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add errors, each times its weight, to the sum of a group; a group that is complete becomes their average.

    table: for each group the addresses of its sum so far, in float32, and of the sum of its weights (0: there are none
    yet), its elements, how many errors are folded in, where they are listed, counted from the first row, where the
    result is written, and whether that is the average. After the groups follow, for each error, its address, that of
    its chunks' sums (see `_sum_chunks`), and how many chunks it has. weights: where the new sums of weights are
    written. phi: None if all weights are 1.
    """
    own, row, begin, end, n = _chunk_of(table, 2 * TILE)
    total, so_far, left, is_average = tl.load(row), tl.load(row + 1), tl.load(row + 3), tl.load(row + 6)
    error = table + tl.num_programs(0) + tl.load(row + 4)
    sum_of_weights = tl.load(so_far.to(weights.dtype), mask=so_far != 0, other=0.0)
    folded = (so_far != 0).to(tl.int32)
    while left > 0:
        left -= 1
        weight = 1.0
        if phi is not None:
            norms = tl.load(error + 1).to(tl.pointer_type(tl.float64))
            weight = _mean_norm(norms, tl.load(error + 2), n, phi, rest)
        sum_of_weights += weight
        divisor = inverse(tl.maximum(sum_of_weights, TINY))
        values, before = tl.load(error).to(like.dtype), total.to(weights.dtype)
        to = tl.where(left == 0, tl.load(row + 5), total).to(weights.dtype)
        tl.debug_barrier()  # the sum so far is there
        first = begin
        while first < end:
            at = first + tl.arange(0, TILE)
            added = tl.load(values + at, mask=at < n, other=0.0).to(tl.float32) * weight
            more = tl.load(before + at, mask=(at < n) & (folded != 0), other=0.0) + added
            more = tl.where(folded == 0, added, more)  # 0 + -0 is 0
            if (left == 0) & (is_average != 0):
                more = times(more, divisor)
            tl.store(to + at, more, mask=at < n)
            first += TILE
        folded += 1
        error += 3
    tl.store(weights + own, sum_of_weights, mask=begin == 0)


@jit
def _add_sent(table, values, indices, ranks, apart, scale, ZERO: tl.constexpr, RANKS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add `scale` x what each of `ranks` has sent, one rank after the other, to the elements of this program's tile.

    values, indices: the first rank's message; that of each other begins `apart` numbers later. Indices ascend, so that
    a tile's are found by halving, for all ranks side by side: RANKS is their number or more, a power of two. ZERO: the
    elements are set to zeros before.
    """
    PART: tl.constexpr = 256
    _, row, first, end, n = _chunk_of(table, TILE)
    target, k = tl.load(row).to(values.dtype), tl.load(row + 3).to(tl.int32)
    mine, own = values + tl.load(row + 4), indices + tl.load(row + 5)
    if ZERO:
        at = first + tl.arange(0, TILE)
        tl.store(target + at, tl.zeros([TILE], tl.float32), mask=at < n)
    lanes = tl.arange(0, RANKS)
    theirs, begin, left = own + lanes.to(tl.int64) * apart, tl.zeros([RANKS], tl.int32), k
    while left > 0:
        half = (left + 1) // 2
        before = tl.load(theirs + begin + half - 1, mask=(lanes < ranks) & (begin + half <= k), other=end) < first
        begin += tl.where(before, half, 0)
        left -= half
    rank = 0
    while rank < ranks:
        tl.debug_barrier()  # what the rank before has added, or the zeros, are there
        entry = tl.sum(tl.where(lanes == rank, begin, 0)) + tl.arange(0, PART)
        last = first
        while last < end:
            place = tl.load(own + entry, mask=entry < k, other=end)
            here = (place >= first) & (place < end)
            added = tl.load(mine + entry, mask=here, other=0.0) * scale
            tl.store(target + place, tl.load(target + place, mask=here, other=0.0) + added, mask=here)
            entry += PART
            last = tl.max(place)
        mine += apart
        own += apart
        rank += 1


def select(tensors: Sequence[Tensor], ks: Sequence[int]) -> list[Tensor]:
    """Return what `largest_magnitudes` does for each of several 1-D `tensors`, without NaN: int64, ascending.

    ks: how many of each, 1 to as many elements as it has.
    """
    until = [*accumulate(ks)]
    out = torch.empty(until[-1], dtype=torch.int64, device=tensors[0].device)
    rows = [row_of(one, None, k, 0, end - k) for one, k, end in zip(tensors, ks, until, strict=True)]
    _select(rows, tensors[0], out)
    return [*out.split([*ks])]


def compress_topk_(
    sums: Sequence[tuple[Tensor, Tensor | None]],
    ks: Sequence[int],
    payloads: Sequence[Tensor],
    checked: Sequence[Tensor | None] = (),
    weighs: bool = False,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Add the second of each of `sums` to the first, and take out of it its largest magnitudes, which `payloads` hold.

    Of equal magnitudes those with the highest indices are chosen; indices ascend; zeros are left in their places.

    Args:
        sums: all of one dtype; without NaN, unless they are checked. None: nothing is added.
        ks: how many elements of each are sent: 1 to as many as it has.
        payloads: receives what is sent of each: 1-D uint8, in memory of one message, values and int32 indices, those of
            the wider dtype first, padded to 8 bytes.
        checked: which of the two tensors of each sum counts as zeros if it holds NaN or infinity; neither, if there is
            none.
        weighs: whether to return what `sum_chunks` returns of what is left in all the first ones, too.

    Returns:
        1 for each sum of which a tensor counts as zeros, and 0 for each other: int32, on their device, for which the
        host does not wait; and these sums of chunks, if any.

    Extra memory: 4 KiB for each tensor of 32 bits and 2 of 16, and 16 bytes for each 8,192 elements.
    """
    message, dtype, rows = payloads[0], sums[0][0].dtype, []
    for (one, more), k, payload, looked_at in zip_longest(sums, ks, payloads, checked):
        start, width = payload.data_ptr() - message.data_ptr(), dtype.itemsize
        values, indices = (start, start + width * k) if width == INDEX_BYTES else (start + INDEX_BYTES * k, start)
        rows.append(row_of(one, more, k, values // width, indices // INDEX_BYTES, _address(looked_at)))
    room, norms = room_for_norms([one for one, _ in sums]) if weighs else (None, ())
    return _select(rows, message.view(dtype), message.view(torch.int32), True, room), norms


def blank_spoilt_(gradients: Sequence[Tensor]) -> Tensor:
    """Fill with zeros those of `gradients` that hold NaN or infinity; return 1 for these, and 0 for each other: int64,
    on their device, for which the host does not wait."""
    first, number = gradients[0], len(gradients)
    rows = tuple(row_of(one, last=one.data_ptr()) for one in gradients)
    grid, table = _table.__wrapped__(rows, 2 * TILE, first.device, 0, (0,) * number)  # the answers, as no other has it
    spoilt = table[-number:]
    launch(_look_for_non_finite, grid, table, first, spoilt, table, 0, TILE)
    launch(_blank_spoilt, grid, table, first, spoilt, TILE)
    return spoilt


def room_for_norms(tensors: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """Return memory for the sums of the chunks of `tensors`, and the part of it for each: (chunks, 2), float64."""
    chunks = [-(-one.numel() // (2 * TILE)) for one in tensors]
    room = torch.empty(sum(chunks), 2, dtype=torch.float64, device=tensors[0].device)
    return room, room.split(chunks)


def sum_chunks(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return, of each chunk of each of `tensors`, the sum of magnitudes and that of squares: (chunks, 2), float64."""
    room, parts = room_for_norms(tensors)
    launch(_sum_chunks, *table_of(map(row_of, tensors), 2 * TILE, room), tensors[0], room, TILE)
    return parts


def fold_(
    sums: Sequence[tuple[Tensor, Tensor | None]],
    errors: Sequence[Sequence[tuple[Tensor, Tensor | None]]],
    into: Sequence[tuple[Tensor, bool]],
    phi: float | None,
) -> Sequence[Tensor]:
    """Do as `fold_` in ops.py, where `errors` are all of one dtype."""
    unknown = [error for own in errors for error, norms in own if norms is None and phi is not None]
    formed = sum_chunks(unknown) if unknown else ()  # held until the launch
    found = iter(formed)
    like, rows, listed = errors[0][0][0], list[Row](), list[int]()
    for (total, so_far), own, (to, is_average) in zip(sums, errors, into, strict=True):
        first = 8 * len(sums) + len(listed)  # behind the rows
        rows.append(row_of(total, so_far, len(own), first, to.data_ptr(), int(is_average)))
        for error, told in own:
            norms = next(found, None) if told is None else told
            listed += [error.data_ptr(), _address(norms), 0 if norms is None else len(norms)]
    weights = torch.empty(len(rows), dtype=torch.float32, device=like.device)
    shares = (None, None) if phi is None else (c_float(phi).value, c_float(1 - phi).value)
    launch(_fold, *table_of(rows, 2 * TILE, like, listed), like, weights, *shares, TINY, TILE)
    return weights.unbind()


def add_topk_(
    targets: Sequence[Tensor], sent: Sequence[Sequence[tuple[Tensor, int]]], scale: float, zero: bool
) -> None:
    """Add `scale` x what ranks have `sent` to its places in each of the float32 `targets`, one rank after the other.

    A product is rounded before it is added. It takes one launch where all ranks have sent as much, and their messages
    lie equally far apart; otherwise one for each rank.

    sent: of each target, from every rank, values and their int32 indices, which ascend, as 1-D uint8, and how many.
    zero: whether the targets are set to zeros before.
    """
    distance = apart([[packed.data_ptr() for packed, _ in own] for own in sent])
    if distance is None or any(len({count for _, count in own}) > 1 for own in sent):
        for rank in range(len(sent[0])):
            add_topk_(targets, [[own[rank]] for own in sent], scale, zero and not rank)
        return
    first, ranks, rows = sent[0][0][0], len(sent[0]), []
    for target, ((packed, count), *_) in zip(targets, sent, strict=True):
        value_at = (packed.data_ptr() - first.data_ptr()) // INDEX_BYTES
        rows.append(row_of(target, None, count, value_at, value_at + count))
    numbers = ranks, distance // INDEX_BYTES, scale, zero, 1 << (ranks - 1).bit_length(), SENT_TILE
    table = table_of(rows, SENT_TILE, first)
    launch(_add_sent, *table, first.view(torch.float32), first.view(torch.int32), *numbers)


def apart(places: Sequence[Sequence[int]]) -> int | None:
    """Return how many bytes lie between what one rank has sent of a tensor and what the next has, by the `places` of
    all ranks' for each tensor; 0 for a single rank, and None if it is not always as many."""
    steps = {after - before for own in places for before, after in pairwise(own)} or {0}
    return steps.pop() if len(steps) == 1 else None


def _select(
    rows: Sequence[Row], values: Tensor, indices: Tensor, takes: bool = False, norms: Tensor | None = None
) -> Tensor:
    """Launch the kernels for tensors like `values`, by their `rows`; return which gradients were not finite."""
    integer, bits = (torch.int32, 31) if values.element_size() == 4 else (torch.int16, 15)
    tensors, digits, raw = len(rows), (bits + 1) // 8, values.view(integer)
    grid, table = table_of(rows, 2 * TILE, values, [0] * (tensors + 1))
    arrived, spoilt = table[-1:], table[-1 - tensors :]
    counts, answers, until = (
        torch.empty(number, dtype=torch.int32, device=values.device)
        for number in (tensors * digits * 256, tensors, 2 * grid[0])
    )
    launch(_look_for_non_finite, grid, table, values, spoilt, counts, digits, TILE)
    for digit in range(digits):
        launch(_histogram, grid, table, values, raw, spoilt, answers, counts, digit, bits, TILE)
    launch(_count_selected, grid, table, raw, counts, until, arrived, bits, TILE)
    launch(_write_selected, grid, table, values, raw, indices, counts, until, spoilt, norms, bits, TILE, takes)
    return answers


def row_of(
    dense: Tensor, added: Tensor | None = None, k: int = 0, values: int = 0, indices: int = 0, last: int = 0
) -> Row:
    """Return what a table has for a tensor: the addresses of its sum and of what is added to it (0: nothing), its
    elements, how many of them are selected, where its values and where its indices begin in the message, each counted
    in elements of their own dtype, and the address of what is checked for NaN (0: nothing). `_fold` says what it has
    instead. An eighth column is the number of its first chunk."""
    return dense.data_ptr(), _address(added), dense.numel(), k, values, indices, last


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def table_of(rows: Iterable[Row], size: int, like: Tensor, more: Sequence[int] = ()) -> tuple[tuple[int], Tensor]:
    """Return how many programs there are, one for each `size` elements of a tensor, and on the GPU of `like` a table:
    of which tensor each chunk of that size is, the `rows`, and what is to follow."""
    stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
    return _table(tuple(rows), size, like.device, stream, tuple(more))


@lru_cache(maxsize=512)
def _table(
    rows: tuple[Row, ...], size: int, device: torch.device, stream: int, more: tuple[int, ...]
) -> tuple[tuple[int], Tensor]:
    """Return what `table_of` does. It is kept for the next step with these addresses, for one `stream`, which has
    waited for the copy."""
    chunks = [max(1, -(-one[2] // size)) for one in rows]
    table = np.column_stack((np.array(rows, np.int64), np.cumsum([0, *chunks[:-1]])))
    owners = np.repeat(np.arange(len(rows)), chunks)
    made = torch.from_numpy(np.concatenate((owners, table.reshape(-1), np.array(more, np.int64))))
    if device.type == "cuda":
        made = made.pin_memory()  # the host does not wait for the copy
    return (len(owners),), made.to(device, non_blocking=True)
