"""Selection of DGC: Lin et al., "Deep gradient compression", ICLR 2018: a threshold estimated from a sample."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from resireduce.compressors.sparse import SparseCompressor
from resireduce.draw import generator, one_of_each
from resireduce.kernels.select import largest_magnitudes, reaching
from resireduce.share import share

SAMPLE = 0.01
"""Share of the elements that the threshold is estimated from."""
ROUNDS = 10
"""How often it is lowered at most."""


@dataclass(frozen=True)
class DGC(SparseCompressor):
    """Sends at most k = max(1, floor(density x n)) elements that reach a threshold, found by sampling.

    The threshold is that of the sample's own top share. As long as it lets less than 0.8 k pass it is lowered by a
    fifth, ten times at most; where it lets more than k pass, their k largest are taken (the released code takes those
    of the lowest indices). This is the selection alone: without the paper's momentum
    correction, factor masking, clipping and warm-up of the density.
    """

    equal_sizes: ClassVar[bool] = False

    density: float
    """Share of the elements that is sent at most, in (0, 1]."""

    @classmethod
    def from_density(cls, density: float) -> Self:
        """DGC with this density."""
        return cls(density)

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Those that reach the threshold, at most k."""
        k, threshold = share(self.density, flat.numel()), self._estimate(flat, name, step)
        if flat.is_meta:
            return torch.empty(k, dtype=torch.int64, device=flat.device)
        candidates = reaching(flat, threshold)
        for _ in range(ROUNDS):
            if len(candidates) >= 0.8 * k:
                break
            threshold = threshold * 0.8
            candidates = reaching(flat, threshold)
        return candidates if len(candidates) <= k else candidates[largest_magnitudes(flat[candidates], k)]

    def _estimate(self, flat: Tensor, name: str, step: int) -> Tensor:
        """0-D: the smallest of the top share of a sample, in which that share is two elements at least."""
        n = flat.numel()
        samples = min(n, max(math.ceil(SAMPLE * n), math.ceil(2 / self.density)))
        positions = one_of_each(n, samples, 0, samples, generator(flat.device, name, step), flat.device)
        return torch.topk(flat[positions].abs(), math.ceil(self.density * samples), sorted=False).values.min()
