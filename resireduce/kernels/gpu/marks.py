"""Marks of elements, packed as the bits of 32-bit numbers: counting them, and counting up to each element."""

from resireduce.kernels.gpu.language import jit, tl


@jit
def packed(meant, bit):  # type: ignore[no-untyped-def]
    """Return a number for each row of 32 of `meant`, whose bits, from the lowest, are the row's truth values.

    bit: the numbers 0 to 31.
    """
    return tl.sum(meant.to(tl.uint32) << bit.to(tl.uint32)[None, :], 1)


@jit
def ones_in(word):  # type: ignore[no-untyped-def]
    """Return how many bits of each `word`, unsigned numbers of 32 bits, are 1: by pairs, by fours, and so on."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word = word + (word >> 8)
    return ((word + (word >> 16)) & 63).to(tl.int32)


@jit
def first_in(word):  # type: ignore[no-untyped-def]
    """Return which bit of each `word`, unsigned numbers of 32 bits that are not 0, is the lowest that is 1."""
    return ones_in((word ^ (word - 1)) >> 1)


@jit
def _next(count, word, more, other):  # type: ignore[no-untyped-def]
    return count + more, other


@jit
def spread(word):  # type: ignore[no-untyped-def]
    """Return each `word`, made by `packed`, in a thread of its own, and how many bits of it and all before are 1.

    A sum over rows leaves each number with all threads of a row, which would do the same for each. What a scan returns
    is spread, and so the numbers go through one that leaves them as they are.
    """
    until, word = tl.associative_scan((ones_in(word), word), 0, _next)
    return word, until


@jit
def choose(key, inside, limit, left_out, before, equal_before, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which elements are selected, the place where each is written, and how many are above the limit, and equal.

    Those above are selected, and those equal to it except for the first `left_out`. key: TILE elements, 2^14 at most,
    of which those `inside` count. before, equal_before: how many above and equal come before them, including those left
    out. Counts up to each element are formed in rows of 64, each of which lies in one warp.
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
