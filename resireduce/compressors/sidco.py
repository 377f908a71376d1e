"""SIDCo: Abdelmoniem et al., "An efficient statistical-based gradient compression technique for distributed training
systems", MLSys 2021."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting, State
from resireduce.compressors.sparse import SparseCompressor
from resireduce.errors import check_count, check_share, choose
from resireduce.kernels.moments import Moments, magnitudes, moments, not_above, planned
from resireduce.kernels.reaching import reaching_or_largest
from resireduce.kernels.tails import exponential, gamma, generalised_pareto
from resireduce.payload import Payload
from resireduce.share import share

FITS = ("exponential", "pareto", "gamma")
CALLS = 5
"""Calls after which the number of stages is adapted."""
FEWER, MORE = 0.8, 1.2
"""Mean numbers sent, as parts of k, below which a stage is added, and above which one is removed."""


@dataclass(frozen=True)
class SIDCo(Selecting, SparseCompressor):
    """Sends what exceeds the threshold of a distribution that is fitted to the magnitudes, in stages.

    With one stage, the share that is to exceed the threshold is `density`. With M stages it is `first` in the first
    one; each of the others is fitted to what exceeded the one before, minus its least value, for a share
    (density / first)^(1 / (M - 1)). M is 1 at the start. After every five calls it rises by one if fewer than 0.8 k
    elements were sent on average, k = max(1, floor(density x n)), and falls by one if more than 1.2 k were, between 1
    and ceil(log2(1 / density)). Each tensor has its own M, as this compressor's state. Of a tensor of zeros nothing is
    sent, and its state stays. If no element passes, those of the largest magnitude are sent; zeros are never sent. A
    plan assumes k.
    """

    equal_sizes: ClassVar[bool] = False

    fit: str = "exponential"
    """exponential; pareto: the generalised Pareto distribution; gamma, with pareto in later stages."""
    stages: int | None = None
    """A fixed M; None: it is adapted."""
    first: float = 0.25
    """Share of the elements that are to pass the first of several stages; with a greater density there is one stage."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting that cannot be used."""
        super().__post_init__()
        choose("fit", self.fit, FITS)
        check_share("first", self.first)
        check_count("stages", self.stages, 1, or_none=True)

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the number of stages, the calls since it was adapted, and the sum of what they sent, as parts of k."""
        return {} if self.stages else {"stages": torch.tensor([1.0, 0.0, 0.0], dtype=torch.float32, device=like.device)}

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of what passes the initial number of stages: int64, ascending."""
        return self._passing(flat, self.stages or 1)

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """Return what passes the number of stages in `state`, which is adapted."""
        if grad.is_meta or self.stages:
            return self.compress(grad, name, step)
        flat, memory = grad.view(-1), state["stages"]
        held, calls, sent = memory.tolist()
        stages = self._allowed(held)
        indices = self._passing(flat, stages)
        if len(indices):
            parts = sent + len(indices) / share(self.density, flat.numel())
            memory.copy_(torch.tensor(self._adapted(stages, int(calls) + 1, parts), device="cpu"))
        return self.packed(grad, indices)

    def _adapted(self, stages: int, calls: int, sent: float) -> tuple[float, float, float]:
        """Return the state after this many `calls`, which sent `sent` in sum, as parts of k."""
        if calls < CALLS:
            return stages, calls, sent
        change = (sent < FEWER * calls) - (sent > MORE * calls)
        return self._allowed(stages + change), 0, 0.0

    def _allowed(self, stages: float) -> int:
        """Return the number of stages nearest to `stages`, between 1 and what this density allows."""
        return int(max(1, min(stages, math.ceil(math.log2(1 / self.density)))))

    def _passing(self, flat: Tensor, stages: int) -> Tensor:
        if flat.is_meta:
            return planned(flat, share(self.density, flat.numel()))
        return reaching_or_largest(flat, not_above(self._threshold(flat, stages), flat.dtype))

    def _threshold(self, flat: Tensor, stages: int) -> float:
        """Return the threshold of the last stage, or of the stage that leaves nothing to fit."""
        if stages == 1 or self.density >= self.first:
            return self._first(flat, self.density)
        threshold, part = self._first(flat, self.first), (self.density / self.first) ** (1 / (stages - 1))
        for _ in range(stages - 1):
            found = moments(magnitudes(flat, threshold))
            if found is None:
                break
            threshold = found.least + self._tail(found, found.least, part)
        return threshold

    def _first(self, flat: Tensor, part: float) -> float:
        """Return the first stage's threshold for this share; gamma, which allows no zeros, is fitted to the rest."""
        logarithms = self.fit == "gamma"
        found = moments(magnitudes(flat, 0.0 if logarithms else None), logarithms)
        if found is None:
            return 0.0
        if logarithms:
            return max(0.0, gamma(found.mean, found.mean_log, min(1.0, part * flat.numel() / found.count)))
        return self._tail(found, 0.0, part)

    def _tail(self, found: Moments, least: float, part: float) -> float:
        """Return what a share `part` of the values, less `least`, exceeds; `found` are the moments of the values."""
        if self.fit == "exponential":
            return exponential(found.mean - least, part)
        return generalised_pareto(found.mean - least, found.variance, part)


@dataclass(frozen=True)
class SIDCoPareto(SIDCo):
    """SIDCo with a generalised Pareto distribution in each stage."""

    fit: str = "pareto"


@dataclass(frozen=True)
class SIDCoGamma(SIDCo):
    """SIDCo with a gamma distribution in the first stage, and a generalised Pareto in the others."""

    fit: str = "gamma"
