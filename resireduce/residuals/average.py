"""ResiReduce-a: one plain average residual for each reusable group (paper, section 4.2)."""

import torch
from torch import Tensor

from resireduce.residuals.group import GroupResidual


class AverageResidual(GroupResidual):
    """Stores sum(w_i r_i) / sum(w_i), with w_i = 1: what is added to all members is what they had left, summed."""

    def weight(self, error: Tensor, name: str) -> Tensor:
        """Return the weight of member `name` with this error: 0-D, on its device, so that nothing waits for a GPU."""
        return error.new_ones(())

    def fold(self, folded: tuple[Tensor, Tensor] | None, error: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of errors, now with `error` of member `name`, and the sum of weights, 0-D."""
        weight = self.weight(error, name)
        if folded is None:
            return torch.mul(error, weight), weight
        total, weights = folded
        return total.addcmul_(error, weight), weights + weight

    def finish(self, total: Tensor, weight: Tensor) -> Tensor:
        """Return the average, in the memory of `total`. If all errors are zero it is zero, not 0 / 0."""
        return total.div_(weight.clamp(min=torch.finfo(weight.dtype).tiny))
