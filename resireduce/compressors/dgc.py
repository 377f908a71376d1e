"""DGC selects by a sampled threshold; so does the simplified form that benchmarks of compressors use."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Momentum, Selecting, count, number
from resireduce.compressors.packed import SparseCompressor
from resireduce.compressors.thresholds import few_reaching, reaching_or_largest
from resireduce.kernels.ops import largest_magnitudes
from resireduce.pieces import generator, one_of_each, share

SAMPLE = 0.01
"""Share of the elements that the threshold is estimated from."""


@dataclass(frozen=True)
class DGC(Selecting, SparseCompressor):
    """Sends at most k = max(1, floor(density x n)) elements that reach a threshold, found by sampling.

    The threshold is the smallest magnitude in the sample's own top share. As long as fewer than 0.8 k elements pass, it
    is lowered by a fifth, at most ten times; where more than k pass, their k largest are taken (the released code takes
    those of the lowest indices). Zeros are never sent, so that a message may be short, or empty. The paper's gradient
    clipping is `max_local_grad_norm` of `resireduce.distribute`; its density warm-up (section 3.3), a function as
    `density`.

    Source: DGC: Lin et al., "Deep gradient compression", ICLR 2018.
    """

    equal_sizes: ClassVar[bool] = False

    momentum_factor: float = number(0.0, below=1)
    """Momentum formed on each rank before compression, in place of the optimizer's, which must be 0 (section 3.1)."""
    nesterov: bool = False
    masking: bool = True
    """Momentum factor masking (section 3.2): the velocity is set to zero where it was sent."""

    @property
    def momentum(self) -> Momentum | None:
        return Momentum(self.momentum_factor, self.nesterov, self.masking) if self.momentum_factor else None

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        n = flat.numel()
        k, threshold = share(self.density, n), self._estimate(flat, name, step)
        if flat.is_meta:
            return torch.empty(k, dtype=torch.int64, device=flat.device)
        for _ in range(11):
            candidates = few_reaching(flat, threshold, k + n // 16)  # a longer list is given up
            if candidates is None or len(candidates) >= 0.8 * k or not threshold:
                break
            threshold = threshold * 0.8
        if candidates is None:  # the k largest of those that reach it are the k largest of all
            return largest_magnitudes(flat, k)
        return candidates if len(candidates) <= k else candidates[largest_magnitudes(flat[candidates], k)]

    def _estimate(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the threshold, 0-D: the smallest of the top share, at least two elements, of a sample."""
        n = flat.numel()
        samples = min(n, max(math.ceil(SAMPLE * n), math.ceil(2 / self.density)))
        positions = one_of_each(n, samples, 0, samples, generator(flat.device, name, step), flat.device)
        return torch.topk(flat[positions].abs(), math.ceil(self.density * samples), sorted=False).values.min()


@dataclass(frozen=True)
class DGCMomentum(DGC):
    """DGC in full but for clipping and warm-up, which depend on the training: momentum correction, half precision."""

    momentum_factor: float = number(0.9, below=1)


@dataclass(frozen=True)
class DGCSimple(Selecting, SparseCompressor):
    """Sends what reaches a threshold estimated from a sample: about density x n elements.

    The sample is drawn with replacement. While more than 1.3 x density x n elements pass the threshold, it is raised by
    30 per cent; while fewer than 0.7 x density x n pass, it is lowered by 30 per cent; at most `rounds` times: such a
    step may jump over the range, and where most magnitudes are equal, most are sent. A plan assumes density x n. If
    nothing passes, the elements of the largest magnitude are sent; zeros are never sent.

    Source: The simplified DGC that benchmarks of compressors use: Xu et al., "GRACE", ICDCS 2021; the ResiReduce paper.
    """

    equal_sizes: ClassVar[bool] = False

    rounds: int = count(10)
    """How often the threshold is changed at most: 10 in GRACE, 2 in the code released with the ResiReduce paper."""

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        n, threshold = flat.numel(), self._estimate(flat, name, step)
        if flat.is_meta:
            return torch.empty(share(self.density, n), dtype=torch.int64, device=flat.device)
        fewest, most = 0.7 * n * self.density, 1.3 * n * self.density
        for _ in range(self.rounds):
            candidates = few_reaching(flat, threshold, int(most))
            if candidates is not None and len(candidates) >= fewest:
                return candidates
            threshold = threshold * (1.3 if candidates is None else 0.7)
        return reaching_or_largest(flat, threshold, strictly=False)

    def _estimate(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the first threshold, 0-D: the smallest of the top share of the sample."""
        n, source = flat.numel(), generator(flat.device, name, step)
        positions = torch.randint(n, (share(SAMPLE, n),), generator=source, device=flat.device)
        return torch.topk(flat[positions].abs(), share(SAMPLE * self.density, n), sorted=False).values.min()
