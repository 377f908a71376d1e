"""Momentum that each rank forms before compression: Lin et al., "Deep gradient compression", ICLR 2018, section 3."""

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor, Momentum
from resireduce.core.messages import Payload


def own_momentum(optimizer: torch.optim.Optimizer) -> str | None:
    """Return the option by which `optimizer` applies its own momentum, momentum or betas, if it does."""
    return next((key for group in optimizer.param_groups for key in ("momentum", "betas") if group.get(key)), None)


class MomentumCorrection:
    """This rank's velocities u, one for each parameter, in place of the optimizer's momentum.

    An optimizer's momentum, applied to sparse averages, discounts a delayed element from the step in which it was sent,
    not from the one in which it arose. Here u <- m u + g on each rank, and u replaces the gradient: it is compensated
    and compressed, and what is not sent of it is the residual. Dense tensors are treated in the same way: averaging is
    linear, so their average is the momentum of the averages.
    """

    def __init__(self, settings: Momentum):
        self.settings = settings
        self._velocities: dict[str, Tensor] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate zeros for tensor `name`, of the shape and dtype of `parameter`."""
        self._velocities[name] = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)

    def accumulate_(self, grad: Tensor, name: str) -> Tensor:
        """Overwrite contiguous `grad` of tensor `name` with its velocity u, or Nesterov's g + m u; return it."""
        velocity = self._velocities[name].mul_(self.settings.factor).add_(grad)
        if self.settings.nesterov:
            return grad.add_(velocity, alpha=self.settings.factor)
        return grad.copy_(velocity)

    def mask_(self, name: str, compressor: Compressor, payload: Payload) -> None:
        """With masking, zero tensor `name`'s velocity where its `payload` has sent elements, unless it has sent all."""
        indices = compressor.sent_indices(payload) if self.settings.masking else None
        if indices is not None:
            self._velocities[name].view(-1).index_fill_(0, indices, 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """Return the velocities, by names that no residual has."""
        return {f"momentum.{name}": velocity for name, velocity in self._velocities.items()}
