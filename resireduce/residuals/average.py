"""ResiReduce-a: one plain average residual for each reusable group (paper, section 4.2)."""

import torch
from torch import Tensor

from resireduce.kernels.averages import WeightedSum
from resireduce.residuals.group import GroupResidual


class AverageResidual(GroupResidual[WeightedSum]):
    """Stores sum(w_i r_i) / sum(w_i), with w_i = 1: what is added to all members is what they had left, summed."""

    def weight(self, error: Tensor, name: str) -> Tensor | float:
        """Return the weight of member `name` with this error: 0-D, on its device, so that nothing waits for a GPU.

        Or phi, if it is `mean_norm(error, phi)`, which is formed where `error` is added.
        """
        return error.new_ones(())

    def _weight(self, error: Tensor, name: str, is_first: bool) -> Tensor | float:
        """Return the weight in the dtype of `error`, or phi; in memory of its own, if others are added to it."""
        weight = self.weight(error, name)
        return weight.to(error.dtype, copy=is_first) if isinstance(weight, Tensor) else weight

    def fold(self, folded: WeightedSum | None, error: Tensor, name: str, room: Tensor | None) -> WeightedSum:
        """Return the weighted sum of errors, now with `error` of member `name`, or with the last one their average.

        The first error is kept as it is: it is weighed, and multiplied by its weight, where the second is added.
        """
        weight = self._weight(error, name, folded is None)
        if folded is None:
            return WeightedSum(_alone(error), weight)
        folded.add(error, weight, room)
        return folded

    def finish(self, folded: WeightedSum, room: Tensor | None) -> Tensor:
        """Return the average. If all errors are zero it is zero, not 0 / 0."""
        if folded.is_average:
            return folded.total
        total, weight = folded.multiplied()
        divisor = weight.clamp(min=torch.finfo(weight.dtype).tiny)
        return torch.div(total, divisor, out=total if room is None else room)


def _alone(error: Tensor) -> Tensor:
    """Return `error`, or a copy, if it is part of a larger piece of memory, which would be held with it."""
    return error if error.untyped_storage().nbytes() == error.nbytes else error.clone()
