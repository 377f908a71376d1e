"""Gaussian-k: Shi et al., "Understanding top-k sparsification in distributed deep learning", arXiv 1911.08772."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.errors import check_count
from resireduce.kernels.moments import moments, not_above, planned, values
from resireduce.kernels.reaching import few_reaching, reaching_or_largest
from resireduce.share import share

LOWER, HIGHER = 0.5, 1.5
"""Factors for the threshold where too few elements pass, or too many."""


@dataclass(frozen=True)
class GaussianK(Selecting, SparseCompressor):
    """Sends what a normal distribution of the gradient's mean and deviation would exceed with probability `density`.

    The threshold is mean + z x deviation, where z leaves half of the density above. With k = max(1, floor(density x
    n)), it is halved while fewer than 2/3 k magnitudes pass, and raised by half while more than 4/3 k do, in at most
    `rounds` rounds. All that then pass are sent, however many: for a gradient that is not normal, a step may jump over
    the range, back and forth. If nothing passes, the elements of the largest magnitude are sent; zeros are never sent.
    A plan assumes k.
    """

    equal_sizes: ClassVar[bool] = False

    rounds: int = 3
    """How often the threshold is changed at most: 3 in the code released with SIDCo, 4 in that with ADTopk."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting that cannot be used."""
        super().__post_init__()
        check_count("rounds", self.rounds)

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
