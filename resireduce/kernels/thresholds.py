"""What compressors that estimate a threshold compute: moments, tails of distributions, and which elements reach it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.pieces import pieces, slices

# --- Moments of many elements, formed in float64 a piece at a time: no square overflows, and no sum loses small values
# ---


PIECES, SMALLEST = 64, 1 << 12
"""Number of pieces in which a large tensor is processed, and elements of a piece of a small one."""


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
    """Yield the elements of 1-D `flat` in float64, a piece at a time."""
    for piece in _pieces(flat):
        yield flat[piece].double()


def magnitudes(flat: Tensor, above: float | None = None) -> Iterator[Tensor]:
    """Yield magnitudes of 1-D `flat` in float64, a piece at a time; only those greater than `above`, if given."""
    for piece in _pieces(flat):
        part = flat[piece].abs().double()
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


def _pieces(flat: Tensor) -> Iterator[slice]:
    return slices(flat.numel(), max(SMALLEST, -(-flat.numel() // PIECES)))


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


def reaching_or_largest(flat: Tensor, threshold: float) -> Tensor:
    """Return what `reaching` does for `flat` and `threshold`, strictly; if nothing, the largest magnitudes."""
    found = reaching(flat, threshold, strictly=True)
    return found if len(found) else reaching(flat, torch.linalg.vector_norm(flat, torch.inf))
