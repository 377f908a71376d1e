"""A threshold that is found exactly from time to time, and reused in between, as in Ok-Topk."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resireduce.kernels.moments import not_above
from resireduce.kernels.reaching import few_reaching

RAISES, RAISE = 5, 1.03
"""How often, and by what factor, a threshold is raised within a step while too many magnitudes reach it."""


def is_due(step: int, found: int, every: int) -> bool:
    """Whether what was found in step number `found`, counted from 1, is due again in `step`, counted from 0.

    It is due if a multiple of `every` steps has come since, or if `found` is 0: it was never found.
    """
    return not found or (found - 1) // every != step // every


@dataclass(frozen=True)
class Threshold:
    """A magnitude that about k elements reach, remembered as three numbers."""

    value: float = 0.0
    """The magnitude; 0: none is known."""
    k: int = 0
    """The number of elements that were wanted when it was found."""
    found: int = 0
    """The number of the step, counted from 1, in which it was found exactly."""

    @classmethod
    def of(cls, memory: Tensor) -> "Threshold":
        """Return the threshold that `memory`, three float64, holds; an unknown one if it has no storage."""
        if memory.is_meta:
            return cls()
        value, k, found = memory.tolist()
        return cls(value, int(k), int(found))

    @classmethod
    def reached_by(cls, values: Tensor, k: int, step: int) -> "Threshold":
        """Return the threshold that 1-D `values`, chosen exactly in `step`, counted from 0, have all reached, where `k`
        were wanted: their least magnitude; an unknown one if there are none, or no storage."""
        least = float(values.abs().amin()) if len(values) and not values.is_meta else 0.0
        return cls(least, k, step + 1)

    def remembered(self, device: torch.device) -> Tensor:
        """Return three float64 on `device`, from which `of` makes this threshold again."""
        return torch.tensor([self.value, self.k, self.found], dtype=torch.float64, device=device)

    def is_due(self, k: int, step: int, every: int) -> bool:
        """Whether it must be found again in `step`, counted from 0: after `every` steps, and for another `k`."""
        return not self.value or self.k != k or is_due(step, self.found, every)

    def reaching(self, values: Tensor) -> Tensor:
        """Return the indices of those of 1-D `values` whose magnitude reaches it, ascending."""
        return (values.abs() >= not_above(self.value, values.dtype)).nonzero()[:, 0]

    def raised(self, flat: Tensor, most: int) -> tuple["Threshold", Tensor | None]:
        """Return it, raised while more than `most` magnitudes of 1-D `flat` reach it, and the indices of those that do;
        None if it was raised RAISES times, and too many still do."""
        known = self
        for _ in range(RAISES + 1):
            found = few_reaching(flat, not_above(known.value, flat.dtype), most)
            if found is not None:
                return known, found
            known = replace(known, value=known.value * RAISE)
        return known, None

    def adapted(self, count: int, most: float, factor: float) -> "Threshold":
        """Return it divided by `factor` if `count`, the elements that reached it, is less than 2/3 of k, multiplied by
        `factor` if more than `most`."""
        if 3 * count < 2 * self.k:
            return replace(self, value=self.value / factor)
        return replace(self, value=self.value * factor) if count > most else self
