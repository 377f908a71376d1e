"""Stored tensors: a residual in memory, in the precision in which it is stored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy

import torch
from torch import Tensor


class Stored(ABC):
    """One tensor that is written once and read once per step. It begins as zeros."""

    @abstractmethod
    def add_to_(self, target: Tensor) -> Tensor:
        """Add what is stored to contiguous `target`, in its precision; return `target`."""

    @abstractmethod
    def read(self, dtype: torch.dtype) -> Tensor:
        """Return what is stored as a tensor of `dtype`, which must not be changed: it may be the storage itself."""

    @abstractmethod
    def release(self) -> None:
        """Free memory that is not needed until the next `set_`, since what is stored has been used."""

    @abstractmethod
    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Store `value`, whose memory may be kept; `source` is for random rounding (None on the meta device)."""

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return memory in which the next value of `dtype` may be formed, once what is stored has been used.

        The value is then given to `set_`, which leaves it there. None: `set_` copies what it is given.
        """
        return None

    def prefetch(self) -> None:
        """Start copying what is stored to where it is used; do nothing if it is already there."""
        return

    @abstractmethod
    def over(self, tensors: Mapping[str, Tensor]) -> "Stored":
        """Return an object of the same kind and shape that holds `tensors`, named as in `tensors()`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors held, by the suffixes of the names that a residual gives them."""


class Plain(Stored):
    """A tensor of `shape` on `device` in a floating-point `dtype`, rounded to nearest.

    What is beyond the range of float16 becomes its largest number: infinity would be sent, and stay.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the values to `target` in one operation; return `target`."""
        return target.add_(self.values)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the values as `dtype`: the stored tensor itself if it has that dtype."""
        return self.values.to(dtype)

    def release(self) -> None:
        """Free all values."""
        self.values = self.values.new_empty(0)

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return the memory of the values, if they are of `dtype`."""
        return self.values if self.values.dtype == dtype else None

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Keep `value` itself if it has the storage dtype, otherwise a copy rounded to it."""
        if value is self.values:  # it was formed there
            return
        if value.dtype == self.values.dtype or self.values.shape != value.shape:
            self.values = value.to(self.values.dtype)
        else:
            self.values.copy_(value)
        _limit_(self.values, value)

    def over(self, tensors: Mapping[str, Tensor]) -> "Plain":
        """Return a tensor of the same precision that holds the values in `tensors`."""
        other = copy(self)
        other.values = tensors[""]
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the values, with an empty suffix as their name."""
        return {"": self.values}


def _limit_(rounded: Tensor, value: Tensor) -> None:
    """Make infinities in `rounded`, a copy of `value`, finite, if it is in float16 and `value` in a wider dtype."""
    if rounded.dtype == torch.float16 != value.dtype:
        largest = torch.finfo(torch.float16).max
        rounded.clamp_(-largest, largest)
