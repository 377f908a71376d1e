"""The simplified DGC that benchmarks of compressors use: Xu et al., "GRACE", ICDCS 2021; the ResiReduce paper."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting
from resireduce.compressors.sparse import SparseCompressor
from resireduce.draw import generator
from resireduce.errors import check_count
from resireduce.kernels.reaching import few_reaching, reaching
from resireduce.share import share

SAMPLE = 0.01
"""Share of the elements that the threshold is estimated from."""


@dataclass(frozen=True)
class DGCSimple(Selecting, SparseCompressor):
    """Sends what reaches a threshold estimated from a sample: about density x n elements.

    The sample is drawn with replacement. While more than 1.3 x density x n elements pass the threshold, it is raised by
    30 per cent; while fewer than 0.7 x density x n pass, it is lowered by 30 per cent; at most `rounds` times. All that
    then pass are sent, however many: a step of 30 per cent may jump over the range, and where most magnitudes are
    equal, most are sent. A plan assumes density x n. If nothing passes, the elements of the largest magnitude are sent;
    zeros are never sent. Optimizer, momentum and residual work as with top-k.
    """

    equal_sizes: ClassVar[bool] = False

    rounds: int = 10
    """How often the threshold is changed at most: 10 in GRACE, 2 in the code released with the ResiReduce paper."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting that cannot be used."""
        super().__post_init__()
        check_count("rounds", self.rounds)

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the elements that reach the threshold: int64, ascending."""
        n, threshold = flat.numel(), self._estimate(flat, name, step)
        if flat.is_meta:
            return torch.empty(share(self.density, n), dtype=torch.int64, device=flat.device)
        fewest, most = 0.7 * n * self.density, 1.3 * n * self.density
        candidates = few_reaching(flat, threshold, int(most))
        for _ in range(self.rounds):
            if candidates is not None and len(candidates) >= fewest:
                break
            threshold = threshold * (1.3 if candidates is None else 0.7)
            candidates = few_reaching(flat, threshold, int(most))
        if candidates is None:
            return reaching(flat, threshold)
        if len(candidates) or not flat.any():
            return candidates
        return reaching(flat, torch.linalg.vector_norm(flat, torch.inf))

    def _estimate(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the first threshold, 0-D: the smallest of the top share of the sample."""
        samples = share(SAMPLE, flat.numel())
        source = generator(flat.device, name, step)
        positions = torch.randint(flat.numel(), (samples,), generator=source, device=flat.device)
        top = torch.topk(flat[positions].abs(), share(SAMPLE * self.density, flat.numel()), sorted=False).values
        return top.min()
