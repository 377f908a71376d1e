"""Optimizers for compressed gradients: SGD for compressors that form momentum before they compress, and AdamW without a
first moment."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from resireduce.errors import ConfigError, is_number


class ParameterwiseOptimizer(torch.optim.Optimizer, ABC):
    """The common base of optimizers that update one parameter after the other: a subclass defines `_update`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    @abstractmethod
    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Update `parameter`, in place, by its gradient `grad` and the options in its `group`."""


class DGCSGD(ParameterwiseOptimizer):
    """SGD for averages that are momentum already; weight decay gets a momentum of its own, as in DGC's released code.

    For a parameter p with average g, of the momentum u of its decay that starts at zero:

        u <- decay_momentum * u + weight_decay * p
        p <- p - lr * (g + u)

    with Nesterov's momentum g + weight_decay * p + decay_momentum * u in place of g + u. Momentum is linear: if g is
    the momentum of the gradients (Lin et al., "Deep gradient compression", ICLR 2018, section 3), this is
    `torch.optim.SGD` with weight decay and momentum. SGD without momentum would apply each decay once, where momentum
    applies it 1 / (1 - decay_momentum) times in the long run.

    Parameters are independent of each other, so they can come in any order and in several calls. Those without a
    gradient are left as they are, and so are gradients. A parameter has a state, u of its shape, only where both
    `weight_decay` and `decay_momentum` of its group are not 0.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, 0 or more.
        decay_momentum: that of the decay, in [0, 1): the compressor's `momentum_factor`.
        nesterov: Nesterov's form: the compressor's `nesterov`.
        weight_decay: share of p that is added to its gradient, 0 or more.

    Raises ConfigError for a number outside these ranges.
    """

    step_is_separable = True
    """Told to `resireduce.distribute`: each parameter is updated from its own gradient and state alone."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        decay_momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        settings = {
            "lr": lr,
            "decay_momentum": decay_momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
        }
        super().__init__(params, settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add `param_group`, as to every optimizer. Raises ConfigError for a number that cannot be used."""
        _check_ranges(self.defaults | param_group, lr=math.inf, decay_momentum=1, weight_decay=math.inf)
        super().add_param_group(param_group)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Add up, then update once: in bfloat16 a decay that is taken off by itself would be rounded away."""
        decay, momentum = group["weight_decay"], group["decay_momentum"]
        direction = grad
        if decay and momentum:
            buffer = self._buffer(parameter).mul_(momentum).add_(parameter, alpha=decay)
            direction = grad.add(buffer, alpha=momentum if group["nesterov"] else 1.0)
        if decay and (group["nesterov"] or not momentum):
            direction = direction.add(parameter, alpha=decay)
        parameter.add_(direction, alpha=-group["lr"])

    def _buffer(self, parameter: Tensor) -> Tensor:
        """Return the momentum of the decay of `parameter`, made when it is first needed."""
        state = self.state[parameter]
        if not state:
            state["decay_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["decay_buffer"]
        return buffer


class SecondMomentAdamW(ParameterwiseOptimizer):
    """AdamW without a first moment: error feedback remembers gradients already, so that only the second is held.

    For a parameter p with gradient g, in step t, of the second moment v that starts at zero:

        v <- beta2 * v + (1 - beta2) * g * g
        p <- p - lr * (g / (sqrt(v / (1 - beta2 ** t)) + eps) + weight_decay * p)

    This is `torch.optim.AdamW(betas=(0, beta2))`, which also holds the last gradient as its first moment. Parameters
    are independent of each other, as in `DGCSGD`; each has a state of its own shape, and its number of steps.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, 0 or more.
        beta2: decay of the second moment, in [0, 1).
        eps: keeps the quotient finite, 0 or more.
        weight_decay: share of p that is taken off, times the learning rate, 0 or more.

    Raises ConfigError for a number outside these ranges.
    """

    step_is_separable = True
    """Told to `resireduce.distribute`: each parameter is updated from its own gradient and state alone."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "beta2": beta2, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add `param_group`, as to every optimizer. Raises ConfigError for a number that cannot be used."""
        _check_ranges(self.defaults | param_group, lr=math.inf, beta2=1, eps=math.inf, weight_decay=math.inf)
        super().add_param_group(param_group)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, beta2 = self.state[parameter], group["beta2"]
        if not state:
            state["step"], state["exp_avg_sq"] = torch.zeros(()), torch.zeros_like(parameter)
        state["step"] += 1
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction = math.sqrt(1 - beta2 ** state["step"].item())
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(grad, square.sqrt().div_(correction).add_(group["eps"]), value=-group["lr"])


def _check_ranges(options: dict[str, Any], **limits: float) -> None:
    """Raise ConfigError for the first of `limits` whose number in `options` is below 0, or not below the limit."""
    for name, limit in limits.items():
        value = options[name].item() if isinstance(options[name], Tensor) else options[name]
        if not is_number(value) or not 0 <= value < limit:
            upper = "" if limit == math.inf else f", less than {limit}"
            raise ConfigError(f"{name}: {value!r} is not allowed; give a number, 0 or more{upper}")
