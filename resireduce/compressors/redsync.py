"""RedSync: Fang et al., "RedSync: reducing synchronization bandwidth for distributed deep learning training system",
Journal of Parallel and Distributed Computing 133, 2019."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.kernels.moments import magnitudes, moments, not_above, planned
from resireduce.kernels.reaching import few_reaching, reaching_or_largest
from resireduce.share import share

WIDTH = 0.2
"""The search ends when its interval is this narrow: after three probes."""
STEPS = (0.8, 0.6, 0.4, 0.2, 0.0)
"""Where the trimmed variant probes, in this order."""


@dataclass(frozen=True)
class RedSync(Selecting, SparseCompressor):
    """Sends what exceeds a threshold between the mean and the largest magnitude, found by halving.

    With k = max(1, floor(density x n)), a probe ends the search if more than k and fewer than 2 k elements pass. If
    fewer than k / 2 pass, the search goes on below, otherwise above; so it moves away from the goal for k / 2 to k. It
    ends at a fifth of the interval, after three probes, and all that pass the last are sent, however many: where the
    largest magnitude lies far out, the probes are too far apart. If nothing passes, the elements of the largest
    magnitude are sent; zeros are never sent. A plan assumes k.
    """

    equal_sizes: ClassVar[bool] = False

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the elements above the threshold: int64, ascending."""
        k = share(self.density, flat.numel())
        if flat.is_meta:
            return planned(flat, k)
        found = moments(magnitudes(flat))
        assert found is not None
        return self._search(flat, k, found.mean, found.largest - found.mean)

    def _search(self, flat: Tensor, k: int, mean: float, width: float) -> Tensor:
        """Return the elements selected by a threshold between `mean` and `mean` + `width`."""
        lower, upper, threshold = 0.0, 1.0, mean
        while upper - lower > WIDTH:
            middle = (lower + upper) / 2
            threshold = not_above(mean + middle * width, flat.dtype)
            passed = few_reaching(flat, threshold, 2 * k - 1, strictly=True)
            if passed is not None and len(passed) > k:
                return passed
            if passed is not None and 2 * len(passed) < k:
                upper = middle
            else:
                lower = middle
        return reaching_or_largest(flat, threshold)


@dataclass(frozen=True)
class RedSyncTrim(RedSync):
    """Sends what exceeds the first of five thresholds, from four fifths of the way to the largest magnitude down to the
    mean, that lets k or more pass; if none does, what exceeds the mean.

    The paper then takes the k largest of these, which are those of top-k; its release sends all.
    """

    def _search(self, flat: Tensor, k: int, mean: float, width: float) -> Tensor:
        for part in STEPS:
            passed = reaching_or_largest(flat, not_above(mean + part * width, flat.dtype))
            if len(passed) >= k:
                break
        return passed
