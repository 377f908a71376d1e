"""The number of elements that a share of a tensor is."""

import math
from functools import lru_cache


@lru_cache(1 << 14)
def share(ratio: float, size: int) -> int:
    """Return max(1, floor(ratio x size)); a product that is whole but for rounding (0.29 x 100) counts as whole."""
    product = ratio * size
    nearest = round(product)
    return max(1, nearest if math.isclose(product, nearest, rel_tol=1e-12) else math.floor(product))
