"""The k largest magnitudes of each tensor of a bucket: in a number of launches that does not depend on the tensors.

A launch goes over the elements of all tensors, a chunk of one tensor in each program. Magnitudes have the order of
their bits. Those of the k-th largest are found eight at a time, from the highest, by counting how many elements have
each value of these eight bits, among those that agree in the higher ones. Then each chunk counts its elements above the
k-th largest and those equal to it, which gives the places where it writes those that are selected.

A histogram of eight bits costs a warp some 40 instructions for 32 elements; of eleven bits it would be some 500.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resireduce.kernels.gpu.one_pass import EXACT, jit, on_device, tl

TILE, TILES = 4096, 2
"""Elements that a program processes at once, a power of two of 2^14 at most; and how many times, for its chunk."""
SENT_TILE = 4096
"""Elements of a tensor to which a program adds what was sent, a power of two."""
BINS = 256
"""How many values the eight bits have that a launch settles."""
Row = tuple[int, int, int, int, int, int]
"""What the table has for each tensor: the addresses of its residual and of its gradient (0: none), its elements, how
many of them are selected, and where its values and where its indices begin in the message, each counted in elements of
their own dtype. A seventh column is the number of its first chunk."""
INDEX_BYTES = 4


@jit
def _chunk_of(table, tensors, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the number of the tensor of this program's chunk, its row in `table`, and the chunk's first element."""
    own = tl.load(table + tensors * 7 + tl.program_id(0))
    row = table + own * 7
    return own, row, ((tl.program_id(0) - tl.load(row + 6)) * CHUNK).to(tl.int32)


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
def _look_for_non_finite(table, like, spoilt, tensors, TILE: tl.constexpr, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write 1 to `spoilt` for each tensor whose gradient holds NaN or infinity. like: a pointer to its dtype."""
    own, row, first = _chunk_of(table, tensors, TILE * TILES)
    gradient, n = tl.load(row + 1), tl.load(row + 2).to(tl.int32)
    if gradient != 0:
        fine = tl.full([TILE], 1, tl.int32)
        end = tl.minimum(first + TILE * TILES, n)
        while first < end:  # no range: the interpreter knows none of numbers of the device
            at = first + tl.arange(0, TILE)
            value = tl.load(gradient.to(like.dtype) + at, mask=at < n, other=0.0).to(tl.float32)
            fine = fine & (tl.abs(value) < float("inf")).to(tl.int32)
            first += TILE
        if tl.min(fine) == 0:
            tl.store(spoilt + own, 1)


@jit
def _blank_spoilt(table, like, spoilt, tensors, TILE: tl.constexpr, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write zeros to the gradients that are `spoilt`. like: a pointer to their dtype."""
    own, row, first = _chunk_of(table, tensors, TILE * TILES)
    if tl.load(spoilt + own) != 0:
        gradient, n = tl.load(row + 1), tl.load(row + 2).to(tl.int32)
        end = tl.minimum(first + TILE * TILES, n)
        while first < end:
            at = first + tl.arange(0, TILE)
            tl.store(gradient.to(like.dtype) + at, tl.zeros([TILE], like.dtype.element_ty), mask=at < n)
            first += TILE


@jit
def _histogram(  # type: ignore[no-untyped-def]
    table,
    like,
    bits,
    spoilt,
    answers,
    counts,
    tensors,
    ROW: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Add to row `ROW` of each tensor's `counts` how often the next bits have each value, where the higher bits are
    those of the k-th largest. The first time, gradients are added to residuals before.

    like, bits: pointers to the tensors' dtype, and to integers as wide. CHECK: nothing is added of gradients that are
    `spoilt`, and `answers` receives a copy of that.
    """
    ROWS: tl.constexpr = (BITS + 1) // 8
    own, row, first = _chunk_of(table, tensors, TILE * TILES)
    residual, gradient, n = tl.load(row), tl.load(row + 1), tl.load(row + 2).to(tl.int32)
    prefix, _, _ = _threshold(counts + own * ROWS * 256, tl.load(row + 3).to(tl.int32), ROW)
    added = n
    if CHECK and ROW == 0:
        is_fine = (tl.load(spoilt + own) == 0).to(tl.int32)
        added = n * is_fine
        tl.store(answers + own, 1 - is_fine, mask=first == 0)
    bins, total = tl.arange(0, 256), tl.zeros([256], tl.int32)
    end = tl.minimum(first + TILE * TILES, n)
    while first < end:
        at = first + tl.arange(0, TILE)
        if ROW == 0:
            held = tl.load(residual.to(like.dtype) + at, mask=at < n, other=0.0)
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
def _count_selected(  # type: ignore[no-untyped-def]
    table, bits, counts, found, tensors, chunks, BITS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):
    """Write how many elements of each chunk are above the k-th largest and, after these numbers, how many equal it."""
    ROWS: tl.constexpr = (BITS + 1) // 8
    own, row, first = _chunk_of(table, tensors, TILE * TILES)
    residual, n = tl.load(row), tl.load(row + 2).to(tl.int32)
    limit, _, _ = _threshold(counts + own * ROWS * 256, tl.load(row + 3).to(tl.int32), ROWS)
    above, equal = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
    end = tl.minimum(first + TILE * TILES, n)
    while first < end:
        at = first + tl.arange(0, TILE)
        key = tl.load(residual.to(bits.dtype) + at, mask=at < n, other=0).to(tl.int32) & ((1 << BITS) - 1)
        above += ((at < n) & (key > limit)).to(tl.int32)
        equal += ((at < n) & (key == limit)).to(tl.int32)
        first += TILE
    tl.store(found + tl.program_id(0), tl.sum(above))
    tl.store(found + chunks + tl.program_id(0), tl.sum(equal))


@jit
def _choose(key, inside, limit, left_out, before, equal_before, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which elements are selected, the place where each is written, and how many are above the limit, and equal.

    Those above are selected, and those equal to it except for the first `left_out`. key: TILE elements, of which those
    `inside` count. before, equal_before: how many above and equal come before them, including those left out. Counts up
    to each element are formed in rows of 64, each of which lies in one warp.
    """
    WIDTH: tl.constexpr = 64
    above, equal = inside & (key > limit), inside & (key == limit)
    both = tl.reshape(above.to(tl.int32) * 65536 + equal.to(tl.int32), [TILE // WIDTH, WIDTH])
    of_row = tl.sum(both, 1)
    until = tl.reshape(tl.cumsum(both, 1) - both + (tl.cumsum(of_row, 0) - of_row)[:, None], [TILE])
    number = equal_before + (until & 65535)
    chosen = above | (equal & (number >= left_out))
    sums = tl.sum(of_row)
    return chosen, before + (until >> 16) + tl.maximum(number - left_out, 0), sums >> 16, sums & 65535


@jit
def _write_selected(  # type: ignore[no-untyped-def]
    table,
    bits,
    indices,
    counts,
    until,
    tensors,
    chunks,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    TAKE: tl.constexpr,
):
    """Write the indices of those above the k-th largest, and of those equal to it the last.

    until: running sums of what `_count_selected` has written. TAKE: write their values to `bits`, and leave zeros in
    their places.
    """
    ROWS: tl.constexpr = (BITS + 1) // 8
    own, row, first = _chunk_of(table, tensors, TILE * TILES)
    residual, n, k = tl.load(row), tl.load(row + 2).to(tl.int32), tl.load(row + 3).to(tl.int32)
    limit, wanted, ties = _threshold(counts + own * ROWS * 256, k, ROWS)
    left_out = ties - wanted
    chunk, begin = tl.program_id(0), tl.load(row + 6)
    before = tl.load(until + chunk - 1, mask=chunk > 0, other=0)
    before -= tl.load(until + begin - 1, mask=begin > 0, other=0)
    equal_before = tl.load(until + chunks + chunk - 1) - tl.load(until + chunks + begin - 1)
    values_at, indices_at = tl.load(row + 4), tl.load(row + 5)
    if TAKE and BITS == 15:  # what pads a tensor's values to 8 bytes
        padding = tl.arange(0, 4)
        tl.store(bits + values_at + k + padding, tl.zeros([4], tl.int16), mask=first + padding < k % 4)
    end = tl.minimum(first + TILE * TILES, n)
    while first < end:
        at = first + tl.arange(0, TILE)
        held = tl.load(residual.to(bits.dtype) + at, mask=at < n, other=0)
        key = held.to(tl.int32) & ((1 << BITS) - 1)
        chosen, into, above, equal = _choose(key, at < n, limit, left_out, before, equal_before, TILE)
        tl.store(indices + indices_at + into, at.to(indices.dtype.element_ty), mask=chosen)
        if TAKE:
            tl.store(bits + values_at + into, held, mask=chosen)
            tl.store(residual.to(bits.dtype) + at, tl.zeros_like(held), mask=chosen)
        before += above
        equal_before += equal
        first += TILE


@jit
def _add_sent(  # type: ignore[no-untyped-def]
    table, values, indices, tensors, ranks, apart, scale, ZERO: tl.constexpr, RANKS: tl.constexpr, TILE: tl.constexpr
):
    """Add `scale` x what each of `ranks` has sent, one rank after the other, to the elements of this program's tile.

    values, indices: the first rank's message; that of each other begins `apart` numbers later. Indices ascend, so that
    a tile's are found by halving, for all ranks side by side: RANKS is their number or more, a power of two. ZERO: the
    elements are set to zeros before.
    """
    PART: tl.constexpr = 256
    _, row, first = _chunk_of(table, tensors, TILE)
    target, n, k = tl.load(row).to(values.dtype), tl.load(row + 2).to(tl.int32), tl.load(row + 3).to(tl.int32)
    mine, own = values + tl.load(row + 4), indices + tl.load(row + 5)
    end = tl.minimum(first + TILE, n)
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


def select(flat: Tensor, k: int) -> Tensor:
    """Return the indices (int64, ascending) of the `k` largest magnitudes of 1-D `flat`, as `largest_magnitudes` does.

    flat: contiguous float32, float16 or bfloat16 without NaN, of 2^30 elements at most, and at least `k`.
    """
    out = torch.empty(k, dtype=torch.int64, device=flat.device)
    _select(((flat.data_ptr(), 0, flat.numel(), k, 0, 0),), flat, flat, out, False)
    return out


def compress_topk_(
    gradients: Sequence[Tensor | None], residuals: Sequence[Tensor], ks: Sequence[int], payloads: Sequence[Tensor]
) -> Tensor:
    """Add `gradients` to `residuals`, and take out of each sum its largest magnitudes, which `payloads` then hold.

    Of equal magnitudes those with the highest indices are chosen; indices ascend; zeros are left in their places.

    Args:
        gradients: contiguous, like the residuals. None: nothing is added.
        residuals: contiguous, all of float32, float16 or bfloat16; without NaN, and not empty.
        ks: how many elements of each are sent: 1 to as many as it has.
        payloads: receives what is sent of each: 1-D uint8, in memory of one message, values and int32 indices, those of
            the wider dtype first, padded to 8 bytes.

    Returns:
        1 for each tensor whose gradient holds NaN or infinity, in place of which zeros have been added, and 0 for each
        other: int32, on their device. The host does not wait for it.

    Extra memory: 4 KiB for each tensor of 32 bits and 2 of 16, and 16 bytes for each 8,192 elements.
    """
    message, width, rows = payloads[0], residuals[0].element_size(), []
    begin = message.data_ptr()
    for one, more, k, payload in zip(residuals, gradients, ks, payloads, strict=True):
        start, other = payload.data_ptr() - begin, 0 if more is None else more.data_ptr()
        values, indices = (start, start + width * k) if width == INDEX_BYTES else (start + INDEX_BYTES * k, start)
        rows.append((one.data_ptr(), other, one.numel(), k, values // width, indices // INDEX_BYTES))
    return _select(tuple(rows), residuals[0], message.view(residuals[0].dtype), message.view(torch.int32), True)


def blank_spoilt_(gradients: Sequence[Tensor]) -> Tensor:
    """Fill with zeros those of `gradients` that hold NaN or infinity.

    They are contiguous, of float32, float16 or bfloat16, on one device, and not empty.

    Returns:
        1 for each of these, and 0 for each other: int32, on their device. The host does not wait for it.
    """
    first, number = gradients[0], len(gradients)
    rows = tuple((0, one.data_ptr(), one.numel(), 0, 0, 0) for one in gradients)
    spoilt = torch.zeros(number, dtype=torch.int32, device=first.device)
    for kernel in (_look_for_non_finite, _blank_spoilt):
        launch(kernel, rows, TILE * TILES, first, first, spoilt, number, TILE, TILES)
    return spoilt


def add_topk_(
    targets: Sequence[Tensor], sent: Sequence[Sequence[tuple[Tensor, int]]], scale: float, zero: bool
) -> None:
    """Add `scale` x what ranks have `sent` to its places in each of the float32 `targets`, one rank after the other.

    A product is rounded before it is added. It takes one launch where all ranks have sent as much, and their messages
    lie equally far apart; otherwise one for each tensor and rank.

    sent: of each target, from every rank, values and their int32 indices, which ascend, as 1-D uint8, and how many.
    zero: whether the targets are set to zeros before.
    """
    places = [[packed.data_ptr() for packed, _ in own] for own in sent]
    first, counts, distance = sent[0][0][0], [[count for _, count in own] for own in sent], apart(places)
    if distance is None or any(len({*own}) > 1 for own in counts):
        for target, own in zip(targets, sent, strict=True):
            for number, one in enumerate(own):
                add_topk_([target], [[one]], scale, zero and not number)
        return
    ranks, width, rows = len(sent[0]), INDEX_BYTES, []
    for target, (at, *_), (count, *_) in zip(targets, places, counts, strict=True):
        value_at = (at - first.data_ptr()) // width
        rows.append((target.data_ptr(), 0, target.numel(), count, value_at, value_at + count))
    numbers = len(rows), ranks, distance // width, scale, zero, 1 << (ranks - 1).bit_length(), SENT_TILE
    launch(_add_sent, rows, SENT_TILE, first, first.view(torch.float32), first.view(torch.int32), *numbers)


def apart(places: Sequence[Sequence[int]]) -> int | None:
    """Return how many bytes lie between what one rank has sent of a tensor and what the next has, by the `places` of
    all ranks' for each tensor; 0 for a single rank, and None if it is not always as many."""
    steps = {after - before for own in places for before, after in pairwise(own)} or {0}
    return steps.pop() if len(steps) == 1 else None


def launch(kernel: Any, rows: Iterable[Row], size: int, like: Tensor, *arguments: Any) -> None:
    """Launch `kernel` with a table of `rows`, a program for each `size` elements of a tensor, on the GPU of `like`."""
    with on_device(like):
        table, chunks = _table(tuple(rows), size, *_where(like))
        kernel[(chunks,)](table, *arguments, **EXACT)


def _select(rows: tuple[Row, ...], first: Tensor, values: Tensor, indices: Tensor, takes: bool) -> Tensor:
    """Launch the kernels for the tensors in `rows`, which are like `first`; return which gradients were not finite."""
    integer, bits = (torch.int32, 31) if first.element_size() == 4 else (torch.int16, 15)
    tensors, digits, size = len(rows), (bits + 1) // 8, TILE * TILES
    device, raw = first.device, values.view(integer)
    with on_device(first):
        table, chunks = _table(rows, size, *_where(first))
        state = torch.zeros(tensors * (digits * BINS + 1), dtype=torch.int32, device=device)
        counts, spoilt = state, state[tensors * digits * BINS :]
        answers = torch.empty(tensors, dtype=torch.int32, device=device)
        found = torch.empty(2 * chunks, dtype=torch.int32, device=device)
        grid, tiles = (chunks,), (TILE, TILES)
        if takes:
            _look_for_non_finite[grid](table, values, spoilt, tensors, *tiles, **EXACT)
        for row in range(digits):
            numbers = tensors, row, bits, *tiles, takes
            _histogram[grid](table, values, raw, spoilt, answers, counts, *numbers, **EXACT)
        _count_selected[grid](table, raw, counts, found, tensors, chunks, bits, *tiles, **EXACT)
        until = found.cumsum(0, dtype=torch.int32)
        _write_selected[grid](table, raw, indices, counts, until, tensors, chunks, bits, *tiles, takes, **EXACT)
    return answers


def _where(tensor: Tensor) -> tuple[torch.device, int]:
    """Return the device of `tensor` and the number of the current stream there."""
    return tensor.device, torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


@lru_cache(maxsize=512)
def _table(rows: tuple[Row, ...], size: int, device: torch.device, stream: int) -> tuple[Tensor, int]:
    """Return a table of the tensors in `rows` on `device`, and of which tensor each chunk of `size` is; and the number
    of chunks. It is kept for the next step with these addresses, for one `stream`, which has waited for the copy."""
    chunks = [max(1, -(-row[2] // size)) for row in rows]
    table = np.column_stack((np.array(rows, np.int64), np.cumsum([0, *chunks[:-1]])))
    owners = np.repeat(np.arange(len(rows)), chunks)
    made = torch.from_numpy(np.concatenate((table.reshape(-1), owners)))
    if device.type == "cuda":
        made = made.pin_memory()  # the host does not wait for the copy
    return made.to(device, non_blocking=True), len(owners)
