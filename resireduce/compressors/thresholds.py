"""Elements above a threshold: a fixed one, or one that is estimated so that a share of the elements reaches it."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting, State, count, number
from resireduce.compressors.packed import SparseCompressor
from resireduce.core.messages import Payload
from resireduce.errors import choose
from resireduce.kernels.ops import infinity_norm
from resireduce.pieces import pieces, share, slices

# --- Moments of many elements, formed in float64 a piece at a time: no square overflows, no sum loses small values ---


@dataclass(frozen=True)
class Moments:
    """Moments of `count` values, 1 or more."""

    count: int
    mean: float
    variance: float
    """The mean square of the differences from the mean."""
    least: float
    largest: float
    mean_log: float
    """The mean of the logarithms; of values that are not all greater than zero, NaN or minus infinity."""


def values(flat: Tensor) -> Iterator[Tensor]:
    """Yield the elements of 1-D `flat` in float64: a sixty-fourth at a time, 4096 of them at least."""
    for piece in slices(flat.numel(), max(4096, -(-flat.numel() // 64))):
        yield flat[piece].double()


def magnitudes(flat: Tensor, above: float | None = None) -> Iterator[Tensor]:
    """Yield magnitudes of 1-D `flat` in float64, a piece at a time; only those greater than `above`, if given."""
    for part in map(torch.abs, values(flat)):
        yield part if above is None else part[part > above]


def moments(parts: Iterable[Tensor], logarithms: bool = False) -> Moments | None:
    """Return the moments of all values in 1-D float64 `parts`; None if there are no values, or no storage.

    Without `logarithms`, `mean_log` is NaN.
    """
    rows, count = [], 0
    for part in parts:
        if part.numel():
            count += part.numel()
            logs = part.log().sum() if logarithms else part.new_tensor(math.nan)
            rows.append(torch.stack((part.sum(), part.dot(part), logs, part.amin(), part.amax())))
    if not rows:
        return None
    columns = torch.stack(rows, 1)
    if columns.is_meta:
        return None
    extremes = columns[3].amin(), columns[4].amax()
    total, squares, logs, least, largest = torch.stack((*columns[:3].sum(1), *extremes)).tolist()
    mean = total / count
    variance = max(0.0, squares / count - mean * mean)
    return Moments(count, mean, variance, least, largest, logs / count)


def planned(flat: Tensor, k: int) -> Tensor:
    """Return `k` indices of 1-D `flat`, a tensor without storage, after using as much memory as its moments need."""
    moments(magnitudes(flat))
    return torch.empty(k, dtype=torch.int64, device=flat.device)


def not_above(threshold: float, dtype: torch.dtype) -> float:
    """Return the largest number of `dtype` that is not above `threshold`, 0 or more: the same elements are greater.

    A comparison rounds the threshold to the tensor's dtype, to nearest: a slightly greater element might then equal it.
    """
    rounded = torch.tensor(threshold, dtype=dtype, device="cpu")
    if rounded.double() > threshold:
        rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
    return rounded.item()


# --- Thresholds that a given share of a distribution on the positive numbers exceeds, fitted by moments ---
#
# As in Abdelmoniem et al., "An efficient statistical-based gradient compression technique for distributed training
# systems" (SIDCo), MLSys 2021, section 2.


def exponential(mean: float, share: float) -> float:
    """Return the threshold that a share `share`, in (0, 1], of an exponential distribution with this `mean` exceeds."""
    return -mean * math.log(share)


def generalised_pareto(mean: float, variance: float, share: float) -> float:
    """Return the threshold that a share `share`, in (0, 1], of a generalised Pareto distribution exceeds.

    With r = `mean`^2 / `variance` its scale is mean (r + 1) / 2, and its shape, in the sign in which positive ones have
    an end, (r - 1) / 2. At r = 1 it is the exponential; as r grows all values come to the mean.
    """
    ratio = mean * mean / variance if variance else math.inf
    if ratio > 1e12:  # nothing but the mean, to the last digit
        return mean
    scale, shape = mean * (ratio + 1) / 2, (ratio - 1) / 2
    if not shape:
        return exponential(mean, share)
    return -scale * math.expm1(shape * math.log(share)) / shape


def gamma(mean: float, mean_log: float, share: float) -> float:
    """Return about the threshold that a share `share`, in (0, 1], of a gamma distribution exceeds.

    It has this `mean`, and about `mean_log` for the mean of its logarithms: its shape is found without iteration. The
    tail is taken as far out, where it is nearly an exponential: -scale (ln share + ln Gamma(shape)), which may be
    less than zero.
    """
    gap = math.log(mean) - mean_log
    if gap < 1e-12:  # nothing but the mean
        return mean
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    return -mean / shape * (math.log(share) + math.lgamma(shape))


# --- Selection of the magnitudes that reach a threshold, in bounded extra memory ---


def reaching(flat: Tensor, threshold: Tensor | float, strictly: bool = False) -> Tensor:
    """Return the indices (int64, ascending) of elements of 1-D `flat` whose magnitude is at least `threshold`; with
    `strictly`, more.

    Zeros are never among them. A sixteenth is processed at a time, so that all magnitudes are never in memory at once.
    """
    found = few_reaching(flat, threshold, flat.numel(), strictly)
    assert found is not None
    return found


def few_reaching(flat: Tensor, threshold: Tensor | float, most: int, strictly: bool = False) -> Tensor | None:
    """Return what `reaching` does for `flat`, `threshold` and `strictly`, or None if there are more than `most`.

    The indices of all elements would take twice the memory of `flat`. It stops before it holds more than those of
    `most` elements and a sixteenth of the tensor.
    """
    compare = torch.gt if strictly or not threshold else torch.ge
    found, count = [], 0
    for piece in pieces(flat.numel()):
        found.append(compare(flat[piece].abs(), threshold).nonzero().view(-1).add_(piece.start))
        count += len(found[-1])
        if count > most:
            return None
    return torch.cat(found)


def reaching_or_largest(flat: Tensor, threshold: Tensor | float, strictly: bool = True) -> Tensor:
    """Return what `reaching` does for `flat`, `threshold` and `strictly`; if nothing, the largest magnitudes."""
    found = reaching(flat, threshold, strictly)
    return found if len(found) else reaching(flat, infinity_norm(flat))


# --- Compressors ---


@dataclass(frozen=True)
class Threshold(SparseCompressor):
    """Sends the elements whose magnitude is greater than `threshold`: none, some or all, and not as many on each rank.

    The values themselves are sent, where Strom sends the threshold with their sign.

    Source: Sparsification by a fixed threshold: Strom, "Scalable distributed DNN training using commodity GPU cloud
    computing", Interspeech 2015.
    """

    equal_sizes: ClassVar[bool] = False

    threshold: float = number(0.01)
    """In the unit of the gradient, 0 or more."""

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        if flat.is_meta:
            return torch.empty(flat.numel(), dtype=torch.int64, device=flat.device)
        return reaching(flat, not_above(self.threshold, flat.dtype), strictly=True)


@dataclass(frozen=True)
class Estimating(Selecting, SparseCompressor):
    """The common base of compressors that estimate a threshold: about k = max(1, floor(density x n)) elements pass it.

    All that pass are sent, however many. Zeros are never sent. A plan assumes k.
    """

    equal_sizes: ClassVar[bool] = False

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        k = share(self.density, flat.numel())
        return planned(flat, k) if flat.is_meta else self.passing(flat, k)

    @abstractmethod
    def passing(self, flat: Tensor, k: int) -> Tensor:
        """Return the indices (int64, ascending) of what passes in 1-D `flat`, where `k` are wanted."""


@dataclass(frozen=True)
class GaussianK(Estimating):
    """Sends what a normal distribution of the gradient's mean and deviation would exceed with probability `density`.

    The threshold is mean + z x deviation, where z leaves half of the density above. It is halved while fewer than 2/3 k
    magnitudes pass, and raised by half while more than 4/3 k do, in at most `rounds` rounds: for a gradient that is not
    normal, a step may jump over the range, back and forth. If nothing passes, the elements of the largest magnitude are
    sent.

    Source: Gaussian-k: Shi et al., "Understanding top-k sparsification in distributed deep learning", arXiv 1911.08772.
    """

    rounds: int = count(3)
    """How often the threshold is changed at most: 3 in the code released with SIDCo, 4 in that with ADTopk."""

    def passing(self, flat: Tensor, k: int) -> Tensor:
        found = moments(values(flat))
        assert found is not None
        threshold = max(0.0, found.mean - NormalDist().inv_cdf(self.density / 2) * math.sqrt(found.variance))
        for _ in range(self.rounds):
            passed = few_reaching(flat, not_above(threshold, flat.dtype), 4 * k // 3, strictly=True)
            if passed is not None and 3 * len(passed) >= 2 * k:
                return passed
            threshold *= 1.5 if passed is None else 0.5
        return reaching_or_largest(flat, not_above(threshold, flat.dtype))


@dataclass(frozen=True)
class RedSync(Estimating):
    """Sends what exceeds a threshold between the mean and the largest magnitude, found by halving.

    A probe ends the search if more than k and fewer than 2 k elements pass. If fewer than k / 2 pass, the search goes
    on below, otherwise above; so it moves away from the goal for k / 2 to k. It ends at a fifth of the interval, after
    three probes: where the largest magnitude lies far out, these are too far apart. If nothing passes, the elements of
    the largest magnitude are sent.

    Source: RedSync: Fang et al., "RedSync: reducing synchronization bandwidth for distributed deep learning training
    system", Journal of Parallel and Distributed Computing 133, 2019.
    """

    def passing(self, flat: Tensor, k: int) -> Tensor:
        found = moments(magnitudes(flat))
        assert found is not None
        return self._search(flat, k, found.mean, found.largest - found.mean)

    def _search(self, flat: Tensor, k: int, mean: float, width: float) -> Tensor:
        """Return the elements selected by a threshold between `mean` and `mean` + `width`."""
        part = 0.5
        for step in (0.25, 0.125, 0.0625):  # how far it moves after each probe
            threshold = not_above(mean + part * width, flat.dtype)
            passed = few_reaching(flat, threshold, 2 * k - 1, strictly=True)
            if passed is not None and len(passed) > k:
                return passed
            part += -step if passed is not None and 2 * len(passed) < k else step
        return reaching_or_largest(flat, threshold)


@dataclass(frozen=True)
class RedSyncTrim(RedSync):
    """Sends what exceeds the first of five thresholds, from four fifths of the way to the largest magnitude down to the
    mean, that lets k or more pass; if none does, what exceeds the mean.

    The paper then takes the k largest of these, which are those of top-k; its release sends all.
    """

    def _search(self, flat: Tensor, k: int, mean: float, width: float) -> Tensor:
        for part in (0.8, 0.6, 0.4, 0.2, 0.0):
            passed = reaching_or_largest(flat, not_above(mean + part * width, flat.dtype))
            if len(passed) >= k:
                break
        return passed


FITS = {"exponential": "SIDCo", "pareto": "SIDCoPareto", "gamma": "SIDCoGamma"}
"""Distributions, and what saved states call a compressor that fits them."""
FIRST = 0.25
"""Share of the elements that are to pass the first of several stages; with a greater density there is one stage."""


@dataclass(frozen=True)
class SIDCo(Estimating):
    """Sends what exceeds the threshold of a distribution that is fitted to the magnitudes, in stages.

    With one stage, the share that is to exceed the threshold is `density`. With M stages it is a quarter in the first
    one; each of the others is fitted to what exceeded the one before, minus its least value, for a share
    (4 density)^(1 / (M - 1)). M is 1 at the start. After every five calls it rises by one if fewer than 0.8 k
    elements were sent on average, and falls by one if more than 1.2 k were, between 1 and ceil(log2(1 / density)). Each
    tensor has its own M, as this compressor's state. Of a tensor of zeros nothing is sent, and its state stays. If no
    element passes, those of the largest magnitude are sent.

    Source: SIDCo: Abdelmoniem et al., "An efficient statistical-based gradient compression technique for distributed
    training systems", MLSys 2021.
    """

    fit: str = field(default="exponential", metadata={"check": partial(choose, allowed=FITS)})
    """exponential; pareto: the generalised Pareto distribution; gamma, with pareto in later stages."""
    stages: int | None = count(None, 1, or_none=True)
    """A fixed M; None: it is adapted."""

    @property
    def memory(self) -> str:
        return f"{FITS[self.fit]} with no momentum"

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the number of stages, the calls since it was adapted, and the sum of what they sent, as parts of k."""
        return {} if self.stages else {"stages": torch.tensor([1.0, 0.0, 0.0], dtype=torch.float32, device=like.device)}

    def passing(self, flat: Tensor, k: int, stages: int = 1) -> Tensor:
        later = (self.stages or stages) - 1 if self.density < FIRST else 0
        threshold = self._first(flat, FIRST if later else self.density)
        for _ in range(later):
            found = moments(magnitudes(flat, threshold))
            if found is None:  # nothing is left to fit
                break
            threshold = found.least + self._tail(found, found.least, (self.density / FIRST) ** (1 / later))
        return reaching_or_largest(flat, not_above(threshold, flat.dtype))

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        if grad.is_meta or self.stages:
            return self.compress(grad, name, step)
        k, memory = share(self.density, grad.numel()), state["stages"]
        held, calls, sent = memory.tolist()
        stages = self._allowed(held)
        indices = self.passing(grad.view(-1), k, stages)
        if len(indices):
            calls, sent = calls + 1, sent + len(indices) / k
            if calls >= 5:
                stages = self._allowed(stages + (sent < 0.8 * calls) - (sent > 1.2 * calls))
                calls, sent = 0, 0.0
            memory.copy_(torch.tensor([stages, calls, sent], device="cpu"))
        return self.packed(grad, indices)

    def _allowed(self, stages: float) -> int:
        """Return the number of stages nearest to `stages`, between 1 and what this density allows."""
        return int(max(1, min(stages, math.ceil(math.log2(1 / self.density)))))

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
