"""Moments of many elements, formed in float64 a piece at a time: no square overflows, and no sum loses small values."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.blocks import slices

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
