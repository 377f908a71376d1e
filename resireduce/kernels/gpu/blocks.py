"""Every element of the tensors of a bucket as the nearest of few levels, whose blocks have a scale each: `block8` and
`block4`. One launch makes what is sent of all tensors, and one adds what all ranks have sent."""

from collections.abc import Sequence

from torch import Tensor

from resireduce.kernels.gpu.bucket import _chunk_of, apart, row_of, table_of
from resireduce.kernels.gpu.one_pass import TINY, inverse, jit, launch, times, tl

ELEMENTS = 4096
"""Elements that a program processes, a power of two."""
BYTE, WIDTH = 8, 4
"""Elements whose bits are a byte of a plane, and bytes of a scale."""


@jit
def _encode_blocks(table, like, codes, TINY: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Form sums, write their scales and levels to the message, which begins at `codes`, and leave in their places what
    rounding takes away."""
    MOST: tl.constexpr = 127 if BITS == 8 else 7
    _, row, first, _, n = _chunk_of(table, BLOCK * ROWS)
    dense, added, scales = tl.load(row).to(like.dtype), tl.load(row + 1), codes.to(tl.pointer_type(tl.float32))
    at = first + tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.load(dense + at, mask=at < n, other=0.0)
    if added != 0:
        more = tl.load(added.to(like.dtype) + at, mask=at < n, other=0.0)
        total = (total.to(tl.float32) + more.to(tl.float32)).to(total.dtype)
    wide = total.to(tl.float32)
    scale = tl.max(tl.abs(wide), 1)
    block = first // BLOCK + tl.arange(0, ROWS)
    tl.store(scales + tl.load(row + 4) + block, scale, mask=block * BLOCK < n)
    level = times(wide, inverse(tl.maximum(scale, TINY))[:, None]) * MOST
    level = (level + 12582912.0) - 12582912.0  # to the nearest whole number, of two the even one
    sent = (times(level, 1.0 / MOST) * scale[:, None]).to(total.dtype).to(tl.float32)
    tl.store(dense + at, (wide - sent).to(total.dtype), mask=at < n)
    code = tl.where(at < n, level.to(tl.int32) + MOST, 0)
    to = codes + tl.load(row + 5)
    if BITS == 8:
        tl.store(to + at, code.to(tl.uint8), mask=at < n)
    else:
        eights = tl.reshape(code, [ROWS * BLOCK // 8, 8])
        octet = first // 8 + tl.arange(0, ROWS * BLOCK // 8)
        for place in tl.static_range(BITS):
            bits = tl.sum(((eights >> place) & 1) << tl.arange(0, 8)[None, :], 1)
            tl.store(to + tl.load(row + 3) * place + octet, bits.to(tl.uint8), mask=octet * 8 < n)


@jit
def _add_blocks(  # type: ignore[no-untyped-def]
    table, like, codes, ranks, distance, scale, zero, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Add `scale` x what each of `ranks` has sent, whose messages begin `distance` bytes after one another; to zeros
    if `zero` is 1."""
    MOST: tl.constexpr = 127 if BITS == 8 else 7
    _, row, first, _, n = _chunk_of(table, BLOCK * ROWS)
    target = tl.load(row).to(like.dtype)
    at = first + tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    block = first // BLOCK + tl.arange(0, ROWS)
    total = tl.load(target + at, mask=(at < n) & (zero == 0), other=0.0)
    from_scales, from_codes = codes.to(tl.pointer_type(tl.float32)) + tl.load(row + 4), codes + tl.load(row + 5)
    rank = 0
    while rank < ranks:
        if BITS == 8:
            code = tl.load(from_codes + at, mask=at < n, other=0).to(tl.int32)
        else:
            code = tl.zeros([ROWS, BLOCK], tl.int32)
            for place in tl.static_range(BITS):
                bits = tl.load(from_codes + tl.load(row + 3) * place + at // 8, mask=at < n, other=0).to(tl.int32)
                code |= ((bits >> (at % 8)) & 1) << place
        held = tl.load(from_scales + block, mask=block * BLOCK < n, other=0.0)
        value = (times((code - MOST).to(tl.float32), 1.0 / MOST) * held[:, None]).to(total.dtype)
        # As torch adds a multiple: rounded once, which float64 does but where its own rounding meets the middle.
        total = (total.to(tl.float64) + value.to(tl.float64) * scale).to(tl.float32).to(total.dtype)
        from_scales += distance // 4
        from_codes += distance
        rank += 1
    tl.store(target + at, total, mask=at < n)


def compress_blocks_(
    sums: Sequence[tuple[Tensor, Tensor | None]], payloads: Sequence[Tensor], block: int, bits: int
) -> None:
    """Add the second of each of `sums` to the first, write what is sent of it, and leave there what is not.

    Args:
        sums: as in bucket.py, finite; None: nothing is added.
        payloads: receives what is sent of each: 1-D uint8, scales in float32 and then levels, in memory of one message.
            Levels are bytes or, of 4 bits, planes of bits as `pack_codes` makes them. What pads it is left as it is.
        block, bits: elements that share a scale, a power of two up to ELEMENTS, and the bits of a level, 8 or 4.
    """
    message, pairs = payloads[0], zip(sums, payloads, strict=True)
    rows = [row_of(one, more, *_places(one, payload, message, block)) for (one, more), payload in pairs]
    sizes = TINY, bits, block, ELEMENTS // block
    launch(_encode_blocks, *table_of(rows, ELEMENTS, message), sums[0][0], message, *sizes)


def _places(dense: Tensor, payload: Tensor, message: Tensor, block: int) -> tuple[int, int, int]:
    """Return the bytes of a plane, and where scales (in numbers) and levels of a `payload` begin, counted from the
    beginning of `message`."""
    at, n = payload.data_ptr() - message.data_ptr(), dense.numel()
    return -(-n // BYTE), at // WIDTH, at + WIDTH * -(-n // block)


def add_blocks_(
    targets: Sequence[Tensor], sent: Sequence[Sequence[Tensor]], block: int, bits: int, scale: float, zero: bool
) -> None:
    """Add `scale` x what ranks have `sent`, as `compress_blocks_` writes it, to each of the `targets`, rank by rank.

    sent: of each target, the payload of every rank. It takes one launch where the payloads of all ranks lie equally far
    apart; otherwise one for each rank. zero: whether targets are set to zeros before.
    """
    distance = apart([[one.data_ptr() for one in own] for own in sent])
    if distance is None:
        for rank in range(len(sent[0])):
            add_blocks_(targets, [[own[rank]] for own in sent], block, bits, scale, zero and not rank)
        return
    first, pairs = sent[0][0], zip(targets, sent, strict=True)
    table = table_of([row_of(to, None, *_places(to, own[0], first, block)) for to, own in pairs], ELEMENTS, first)
    sizes = len(sent[0]), distance, scale, int(zero), bits, block, ELEMENTS // block
    launch(_add_blocks, *table, targets[0], first, *sizes)
