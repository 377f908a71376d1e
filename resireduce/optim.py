"""Optimizers for compressed gradients: SGD whose weight decay has a momentum, and AdamW without momentum."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from resireduce.errors import check, is_number


class ParameterwiseOptimizer(torch.optim.Optimizer):
    """The common base of optimizers that update one parameter after the other: a subclass defines `_update`."""

    limits: ClassVar[dict[str, float]] = {}
    """For each option that is checked, the number that it must be less than; all must be 0 or more."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add `param_group`, as to every optimizer. Raises ConfigError for a number that cannot be used."""
        options = self.defaults | param_group
        for name, limit in self.limits.items():
            value = options[name].item() if isinstance(options[name], Tensor) else options[name]
            upper = "" if limit == math.inf else f", less than {limit}"
            check(name, value, is_number(value) and 0 <= value < limit, f"a number, 0 or more{upper}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss, if there is one."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Update `parameter`, in place, by its gradient `grad` and the options in its `group`."""
        raise NotImplementedError


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
    limits: ClassVar[dict[str, float]] = {"lr": math.inf, "decay_momentum": 1, "weight_decay": math.inf}

    def __init__(
        self, params: ParamsT, lr: float, decay_momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        settings = {"lr": lr, "decay_momentum": decay_momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, settings)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Add up, then update once: in bfloat16 a decay that is taken off by itself would be rounded away."""
        decay, momentum = group["weight_decay"], group["decay_momentum"]
        direction = grad
        if decay and momentum:
            state = self.state[parameter]
            if not state:
                state["decay_buffer"] = torch.zeros_like(parameter)
            buffer = state["decay_buffer"].mul_(momentum).add_(parameter, alpha=decay)
            direction = grad.add(buffer, alpha=momentum if group["nesterov"] else 1.0)
        if decay and (group["nesterov"] or not momentum):
            direction = direction.add(parameter, alpha=decay)
        parameter.add_(direction, alpha=-group["lr"])


class SecondMomentAdamW(ParameterwiseOptimizer):
    """AdamW with beta1 = 0, which needs no first moment: one state of a parameter's size in place of two.

    For a parameter p with gradient g, in its step t, of the average v that starts at zero:

        v <- beta * v + (1 - beta) * g * g
        p <- p - lr * weight_decay * p - lr * g / (sqrt(v / (1 - beta^t)) + eps)

    This is `torch.optim.AdamW` with betas=(0, beta): Loshchilov and Hutter, "Decoupled weight decay regularization",
    ICLR 2019. What is not sent is in the residual, so that gradients of several steps are added up even so.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, 0 or more.
        beta: share of v that stays from step to step, in [0, 1).
        eps: keeps the quotient finite, 0 or more.
        weight_decay: share of p that is subtracted, before multiplication by the learning rate, 0 or more.

    Raises ConfigError for a number outside these ranges.
    """

    step_is_separable = True
    limits: ClassVar[dict[str, float]] = {"lr": math.inf, "beta": 1, "eps": math.inf, "weight_decay": math.inf}

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, beta: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "eps": eps, "weight_decay": weight_decay})

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, beta = self.state[parameter], group["beta"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        square = state["square"].mul_(beta).addcmul_(grad, grad, value=1 - beta)
        correction = (1 - beta ** state["step"].item()) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(grad, square.sqrt().div_(correction).add_(group["eps"]), value=-group["lr"])
