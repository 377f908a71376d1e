"""Elements above a threshold: a fixed one, or one that is estimated so that a share of the elements reaches it."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting, State
from resireduce.compressors.topk import SparseCompressor
from resireduce.core.payload import Payload
from resireduce.errors import ConfigError, check_count, check_share, choose, is_number
from resireduce.kernels.thresholds import (
    Moments,
    exponential,
    few_reaching,
    gamma,
    generalised_pareto,
    magnitudes,
    moments,
    not_above,
    planned,
    reaching,
    reaching_or_largest,
    values,
)
from resireduce.pieces import share


@dataclass(frozen=True)
class Threshold(SparseCompressor):
    """Sends the elements whose magnitude is greater than `threshold`: none, some or all, and not as many on each rank.

    The values themselves are sent, where Strom sends the threshold with their sign.

    Source: Sparsification by a fixed threshold: Strom, "Scalable distributed DNN training using commodity GPU cloud
    computing", Interspeech 2015.
    """

    equal_sizes: ClassVar[bool] = False

    threshold: float = 0.01
    """In the unit of the gradient, 0 or more."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a threshold that cannot be used."""
        if not is_number(self.threshold) or not math.isfinite(self.threshold) or self.threshold < 0:
            raise ConfigError(f"threshold: {self.threshold!r} is not allowed; give a number, 0 or more")

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of greater magnitudes, int64, ascending; all for a tensor without storage."""
        if flat.is_meta:
            return torch.empty(flat.numel(), dtype=torch.int64, device=flat.device)
        return reaching(flat, not_above(self.threshold, flat.dtype), strictly=True)


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

    Source: Gaussian-k: Shi et al., "Understanding top-k sparsification in distributed deep learning", arXiv 1911.08772.
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

    Source: RedSync: Fang et al., "RedSync: reducing synchronization bandwidth for distributed deep learning training
    system", Journal of Parallel and Distributed Computing 133, 2019.
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

    Source: SIDCo: Abdelmoniem et al., "An efficient statistical-based gradient compression technique for distributed
    training systems", MLSys 2021.
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
