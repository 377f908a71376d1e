"""The simplified DGC that benchmarks of compressors use: Xu et al., "GRACE", ICDCS 2021; the ResiReduce paper."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.draw import generator
from resireduce.kernels.select import reaching
from resireduce.share import share

SAMPLE = 0.01
"""Share of the elements that the threshold is estimated from."""
ROUNDS = 10
"""How often it is adapted at most."""


@dataclass(frozen=True)
class DGCSimple(Selecting, SparseCompressor):
    """Sends what reaches a threshold estimated from a sample: about k = max(1, floor(density x n)) elements.

    The sample is drawn with repeats. As long as the threshold lets more than 1.3 k pass it is raised by 30 per cent, as
    long as it lets less than 0.7 k pass lowered by 30 per cent, ten times at most; what it then lets pass is sent, as
    much as that is: at low densities a step of 30 per cent may jump over the range. If nothing passes, the elements of
    the largest magnitude are sent; zeros never are. Optimizer, momentum and residual stay as with top-k.
    """

    equal_sizes: ClassVar[bool] = False

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Those that reach the threshold."""
        k, threshold = share(self.density, flat.numel()), self._estimate(flat, name, step)
        if flat.is_meta:
            return torch.empty(k, dtype=torch.int64, device=flat.device)
        candidates = reaching(flat, threshold)
        for _ in range(ROUNDS):
            if 0.7 * k <= len(candidates) <= 1.3 * k:
                break
            threshold = threshold * (1.3 if len(candidates) > k else 0.7)
            candidates = reaching(flat, threshold)
        if len(candidates) or not flat.any():
            return candidates
        return reaching(flat, torch.linalg.vector_norm(flat, torch.inf))

    def _estimate(self, flat: Tensor, name: str, step: int) -> Tensor:
        """0-D: the smallest of the top share of the sample, and more than zero."""
        samples = share(SAMPLE, flat.numel())
        source = generator(flat.device, name, step)
        positions = torch.randint(flat.numel(), (samples,), generator=source, device=flat.device)
        top = torch.topk(flat[positions].abs(), share(self.density, samples), sorted=False).values
        return top.min().clamp(min=torch.finfo(flat.dtype).tiny)
