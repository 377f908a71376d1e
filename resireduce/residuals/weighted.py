"""ResiReduce-w: one weighted average residual for each reusable group (paper, section 4.2)."""

from torch import Tensor

from resireduce.errors import ConfigError, choose, is_number
from resireduce.kernels.norms import mean_norm
from resireduce.kernels.packed_largest import Addend
from resireduce.residuals.average import AverageResidual
from resireduce.residuals.base import addable
from resireduce.residuals.choosing import NORMS


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
            self._weights[name] = mean_norm(compensated, self.phi)
        return compensated

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Addend] | None:
        """Return `grad` and the residual of the group of tensor `name`; None, if norms are those of their sum."""
        own = type(self).compensate_ is WeightedResidual.compensate_ and self.norms == "residual"
        return addable(grad, self._group_of[name].stored) if own else None

    def leaves_stored(self, name: str) -> bool:
        """Return True, unless `compensate_` is a subclass' own: a weight that is remembered is replaced by the next."""
        return type(self).compensate_ is WeightedResidual.compensate_

    def weight(self, error: Tensor, name: str) -> Tensor | float:
        """Return phi, for norms of `error`; or the weight, 0-D, that the sum has had."""
        return self._weights.pop(name, self.phi)
