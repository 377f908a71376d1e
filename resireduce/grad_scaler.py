"""Loss scaling for half precision: torch's GradScaler, whose gradients are compressed before it could unscale them."""

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from resireduce.errors import UsageError
from resireduce.optimizer import DistributedOptimizer


class GradScaler(torch.amp.GradScaler):
    """Used as torch's own, and given to `resireduce.distribute(..., grad_scaler=scaler)`.

    Gradients are divided by the scale before residuals are added to them, so residuals do not depend on it. If a
    gradient of any rank overflows all ranks skip the step. With kept gradients no residual is changed then; with
    streamed ones all finite gradients of that step go into their residuals, as they would if nothing had been sent.
    """

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """As torch's; raises UsageError if `optimizer` was distributed without this scaler."""
        if not isinstance(optimizer, DistributedOptimizer) or not self.is_enabled():
            return super().step(optimizer, *args, **kwargs)
        if optimizer.grad_scaler is not self:
            raise UsageError("step: the optimizer does not know this scaler; give it to distribute(grad_scaler=...)")
        self._check_scale_growth_tracker("step")  # torch's: backward() was given scale(loss)
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise UsageError("step() has already been called since the last update()")
        result = optimizer.step(*args, **kwargs)
        # What torch's update() asks for, to choose the next scale.
        found = torch.tensor(float(optimizer.overflowed), device=self._device)
        state |= {"found_inf_per_device": {found.device: found}, "stage": OptState.STEPPED}
        return result

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """As torch's; raises UsageError if `optimizer` is a DistributedOptimizer, which unscales by itself."""
        if isinstance(optimizer, DistributedOptimizer):
            raise UsageError(
                "unscale_: gradients are unscaled before they are compressed; to clip them give max_grad_norm to "
                "resireduce.distribute(...)"
            )
        super().unscale_(optimizer)
