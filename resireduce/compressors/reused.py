"""A threshold that is found exactly once in a while, and used again in between, as Ok-Topk's are."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


def is_due(step: int, found: int, every: int) -> bool:
    """Whether in `step`, counted from 0, that is to be found again which was in step number `found`, counted from 1.

    That is so if a multiple of `every` steps has come since; and if `found` is 0: it never was.
    """
    return not found or (found - 1) // every != step // every


@dataclass(frozen=True)
class Threshold:
    """A magnitude that about k elements reach. All that is remembered of it are three numbers."""

    value: float = 0.0
    """The magnitude; 0: none is known."""
    k: int = 0
    """The number of elements that was wanted when it was found."""
    found: int = 0
    """The number of the step, counted from 1, in which it was found exactly."""

    @classmethod
    def of(cls, memory: Tensor) -> "Threshold":
        """Return what `memory`, three float64, holds; of one without storage, that none is known."""
        if memory.is_meta:
            return cls()
        value, k, found = memory.tolist()
        return cls(value, int(k), int(found))

    def remembered(self, device: torch.device) -> Tensor:
        """Return three float64 on `device`, from which `of` makes this threshold again."""
        return torch.tensor([self.value, self.k, self.found], dtype=torch.float64, device=device)

    def is_due(self, k: int, step: int, every: int) -> bool:
        """Whether in `step`, counted from 0, it is to be found again: every so many steps, and for another `k`."""
        return not self.value or self.k != k or is_due(step, self.found, every)

    def adapted(self, count: int, most: float, factor: float) -> "Threshold":
        """Return it divided by `factor` if fewer than 2/3 of k reached it, multiplied if more than `most`, by their
        `count`."""
        if 3 * count < 2 * self.k:
            return replace(self, value=self.value / factor)
        return replace(self, value=self.value * factor) if count > most else self
