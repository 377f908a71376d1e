"""Momentum that is formed before compression: Lin et al., "Deep gradient compression", ICLR 2018, section 3."""

import torch
from torch import Tensor

from resireduce.compressors.base import Momentum


def own_momentum(optimizer: torch.optim.Optimizer) -> str | None:
    """The option by which `optimizer` applies momentum of its own: momentum or betas; None if it applies none."""
    return next((key for group in optimizer.param_groups for key in ("momentum", "betas") if group.get(key)), None)


class MomentumCorrection:
    """This rank's velocities u, one for each parameter, in place of the optimizer's momentum.

    An optimizer's momentum, applied to sparse averages, discounts what was kept back by when it was sent and not by
    when it was found. Here u <- m u + g on each rank, and u takes the gradient's place: it is compensated and
    compressed, and what is not sent of it is the residual. Tensors that are sent dense are treated alike: averaging is
    linear, so their average is the momentum of the averages.

    Args:
        settings: factor, Nesterov's form, masking.
    """

    def __init__(self, settings: Momentum):
        self.settings = settings
        self._velocities: dict[str, Tensor] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Zeros for tensor `name`, of the parameter's shape and dtype."""
        self._velocities[name] = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)

    def accumulate_(self, grad: Tensor, name: str) -> Tensor:
        """Contiguous `grad` of tensor `name`, overwritten with its velocity u; with Nesterov's momentum g + m u."""
        velocity = self._velocities[name].mul_(self.settings.factor).add_(grad)
        if self.settings.nesterov:
            return grad.add_(velocity, alpha=self.settings.factor)
        return grad.copy_(velocity)

    def mask_(self, name: str, indices: Tensor | None) -> None:
        """Forget tensor `name`'s velocity at the flat `indices` that were sent, if it is masked; None: all were."""
        if self.settings.masking and indices is not None:
            self._velocities[name].view(-1).index_fill_(0, indices, 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """Return the velocities, by names that no residual has."""
        return {f"momentum.{name}": velocity for name, velocity in self._velocities.items()}
