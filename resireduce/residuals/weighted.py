"""ResiReduce-w: one weighted average residual for each reusable group (paper, section 4.2)."""

import torch
from torch import Tensor

from resireduce.errors import ConfigError
from resireduce.residuals.average import AverageResidual


class WeightedResidual(AverageResidual):
    """The average with weights w_i = phi |r_i|_1 / n_i + (1 - phi) |r_i|_2 / sqrt(n_i)."""

    def __init__(self, *, phi: float = 0.5, **options: object):
        super().__init__(**options)
        if not 0 <= phi <= 1:
            raise ConfigError(f"phi: {phi!r} is not allowed; give the weight of the L1 norm, 0 <= phi <= 1")
        self.phi = phi

    def weight(self, error: Tensor) -> Tensor:
        """From the residual's norms, as the paper has it."""
        n = error.numel()
        l1, l2 = torch.linalg.vector_norm(error, 1), torch.linalg.vector_norm(error, 2)
        return self.phi * l1 / n + (1 - self.phi) * l2 / n**0.5
