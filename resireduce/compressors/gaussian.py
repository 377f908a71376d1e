"""Gaussian-k: Shi et al., "Understanding top-k sparsification in distributed deep learning", arXiv 1911.08772."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.errors import ConfigError, is_count
from resireduce.kernels.moments import moments, not_above, planned, values
from resireduce.kernels.reaching import few_reaching, reaching_or_largest
from resireduce.share import share

LOWER, HIGHER = 0.5, 1.5
"""What the threshold is multiplied by where it lets too few pass, or too many."""


@dataclass(frozen=True)
class GaussianK(Selecting, SparseCompressor):
    """Sends what a normal distribution of the gradient's mean and deviation would exceed with probability `density`.

    The threshold is mean + z deviation, where z leaves half of the density above. While it lets fewer than 2/3 of k =
    max(1, floor(density x n)) magnitudes pass it is halved, while more than 4/3, raised by half: in `rounds` rounds at
    most. What it then lets pass is sent, as much as that is: of a gradient that is not normal a step may jump over the
    range, to and fro. If nothing passes, the elements of the largest magnitude are sent; zeros never are. A plan
    reckons with k.
    """

    equal_sizes: ClassVar[bool] = False

    rounds: int = 3
    """How often the threshold is changed at most: 3 as beside SIDCo's release, 4 as beside ADTopk's."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting that cannot be used."""
        super().__post_init__()
        if not is_count(self.rounds):
            raise ConfigError(f"rounds: {self.rounds!r} is not allowed; give a number, 0 or more")

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the elements above the threshold: int64, ascending."""
        k = share(self.density, flat.numel())
        if flat.is_meta:
            return planned(flat, k)
        threshold, most = self._first(flat), 4 * k // 3
        for _ in range(self.rounds):
            found = few_reaching(flat, not_above(threshold, flat.dtype), most, strictly=True)
            if found is not None and 3 * len(found) >= 2 * k:
                return found
            threshold *= HIGHER if found is None else LOWER
        return reaching_or_largest(flat, not_above(threshold, flat.dtype))

    def _first(self, flat: Tensor) -> float:
        """Return the normal distribution's threshold; a mean far below zero does not make it negative."""
        found = moments(values(flat))
        assert found is not None
        return max(0.0, found.mean - NormalDist().inv_cdf(self.density / 2) * math.sqrt(found.variance))
