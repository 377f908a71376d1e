"""ResiReduce-w: one weighted average residual for each reusable group (paper, section 4.2)."""

from torch import Tensor

from resireduce.errors import ConfigError, choose, is_number
from resireduce.kernels.norms import l1_and_l2_norm
from resireduce.residuals.average import AverageResidual
from resireduce.residuals.base import NORMS


class WeightedResidual(AverageResidual):
    """The average with weights w_i = phi |x_i|_1 / n_i + (1 - phi) |x_i|_2 / sqrt(n_i).

    Args:
        phi: weight of the L1 norm, 0 to 1; the paper has 0.5.
        norms: what x_i is: "residual" (the paper) or "compensated", the gradient with the residual added to it (the
            released code).

    Raises ConfigError for other values.
    """

    def __init__(self, *, phi: float = 0.5, norms: str = "residual", **options: object):
        super().__init__(**options)
        if not is_number(phi) or not 0 <= phi <= 1:
            raise ConfigError(f"phi: {phi!r} is not allowed; give the weight of the L1 norm, 0 <= phi <= 1")
        self.phi, self.norms = phi, choose("norms", norms, NORMS)
        self._weights: dict[str, Tensor] = {}

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return G + the group's residual; remember its weight, if norms are to be those of this sum."""
        compensated = super().compensate_(grad, name)
        if self.norms == "compensated":
            self._weights[name] = self._weigh(compensated)
        return compensated

    def weight(self, error: Tensor, name: str) -> Tensor:
        """Return the weight, 0-D: of the norms of `error`, or of those of the sum that `compensate_` has seen."""
        return self._weigh(error) if self.norms == "residual" else self._weights.pop(name)

    def _weigh(self, x: Tensor) -> Tensor:
        n, (l1, l2) = x.numel(), l1_and_l2_norm(x)
        return self.phi * l1 / n + (1 - self.phi) * l2 / n**0.5
