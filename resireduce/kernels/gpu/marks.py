"""Which of 32 elements side by side are meant, as the bits of one number: counted, and gone through one by one."""

from resireduce.kernels.gpu.language import jit, tl


@jit
def packed(meant, bit):  # type: ignore[no-untyped-def]
    """Return a number for each row of 32 of `meant`: its bits, from the lowest, say of which elements that is true."""
    return tl.sum(meant.to(tl.uint32) << bit.to(tl.uint32)[None, :], 1)


@jit
def ones_in(word):  # type: ignore[no-untyped-def]
    """Return how many bits of unsigned numbers of 32 bits are 1: by pairs, by fours, and so on."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word = word + (word >> 8)
    return ((word + (word >> 16)) & 63).to(tl.int32)


@jit
def first_in(word):  # type: ignore[no-untyped-def]
    """Return which bit of unsigned numbers of 32 bits, that are not 0, is the lowest that is 1."""
    return ones_in((word ^ (word - 1)) >> 1)


@jit
def _next(count, word, more, other):  # type: ignore[no-untyped-def]
    return count + more, other


@jit
def spread(word):  # type: ignore[no-untyped-def]
    """Return the numbers of `packed`, a thread for each, and how many bits of them and of all before are 1.

    A sum over rows leaves each number with all threads of a row, which would do the same for each. What a scan returns
    is spread, and so the numbers go through one that leaves them as they are.
    """
    until, word = tl.associative_scan((ones_in(word), word), 0, _next)
    return word, until
