"""Quotients of float32 numbers, rounded once, by a product: many are divided by one number, which is inverted once.

With q = x / d, both of 24 bits, float64's x (1 / d) is off by 2^-52 q at most. If q lies in the middle between two
numbers that float32 has, as it can if these are denormal, it has 24 bits itself, and the product rounded to 50 bits is
q. Else q is 2^-48 q or more from any such middle: of two integers of 24 bits that are no multiples, one is off by 1 at
least. So the product, rounded to 50 bits and then to float32, is q rounded to float32.
"""

from resireduce.kernels.gpu.language import jit, tl


@jit
def inverse(divisor):  # type: ignore[no-untyped-def]
    """Return what `times` is told of float32 `divisor`, which is more than 0: its inverse in float64."""
    return 1.0 / divisor.to(tl.float64)


@jit
def times(x, inverted):  # type: ignore[no-untyped-def]
    """Return float32 `x` over the number of which `inverted` is the `inverse`, as float32 division does."""
    product = x.to(tl.float64) * inverted
    bits = (product.to(tl.int64, bitcast=True) + 4) & -8  # to 50 bits, of infinity none
    return bits.to(tl.float64, bitcast=True).to(tl.float32)
