"""Loss scaling for half precision: torch's GradScaler, for gradients that are compressed before it unscales them."""

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import UsageError


class GradScaler(torch.amp.GradScaler):
    """Used like torch's own, and given to `resireduce.distribute(..., grad_scaler=scaler)`.

    Gradients are divided by the scale before residuals are added to them, so residuals do not depend on it. If a
    gradient of any rank overflows, all ranks skip the step. With kept gradients no residual is then changed; with
    streamed ones all finite gradients of that step go into their residuals: with `baseline` and `a` as if nothing had
    been sent, and with other schemes near to that.
    """

    _has_scaled = False
    """Whether a loss was scaled since the last update()."""
    _inverse_scale: float | None = None
    """The factor that undoes it, once it has been asked for: on a GPU the host waits for it."""

    def scale(self, outputs: Any) -> Any:
        """Return `outputs`, a loss or several, multiplied by the scale, as torch's."""
        self._has_scaled, self._inverse_scale = True, None
        return super().scale(outputs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Choose the next scale, or take `new_scale`, as torch's."""
        super().update(new_scale)
        self._has_scaled = False

    def inverse_scale(self) -> float:
        """Return the factor by which gradients of this step are multiplied.

        Raises UsageError if their loss was not scaled, ZeroDivisionError if the scale has fallen to 0 by overflows.
        """
        if not self._has_scaled:
            raise UsageError(
                "backward() without grad_scaler.scale(loss), so that gradients would be divided by a scale that they "
                "do not have: use scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update()"
            )
        if self._inverse_scale is None:
            self._inverse_scale = 1.0 / self.get_scale()
        return self._inverse_scale

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Take the step of `optimizer`, as torch's does. UsageError if that was distributed without this scaler."""
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
        found = torch.tensor(float(optimizer.overflowed), dtype=torch.float32, device=self._device)
        state |= {"found_inf_per_device": {found.device: found}, "stage": OptState.STEPPED}
        return result

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale as torch's does, so not at all where this scaler is disabled.

        UsageError if `optimizer` is a DistributedOptimizer, which unscales by itself.
        """
        if isinstance(optimizer, DistributedOptimizer) and self.is_enabled():
            raise UsageError(
                "unscale_: gradients are unscaled before they are compressed; to clip them give max_grad_norm to "
                "resireduce.distribute(...)"
            )
        super().unscale_(optimizer)
