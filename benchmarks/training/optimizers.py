"""A workload's optimizer, before it is distributed; BERT's own is here."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.core.workloads import Workload
from resireduce.optim import DGCSGD, ParameterwiseOptimizer, SecondMomentAdamW


class BertAdam(ParameterwiseOptimizer):
    """Adam without bias correction, with decoupled weight decay, each gradient clipped by its own norm.

    For a parameter p with gradient g, of the averages m and v that start at zero:

        g <- g * min(1, max_norm / (|g| + 1e-6))
        m <- b1 * m + (1 - b1) * g
        v <- b2 * v + (1 - b2) * g * g
        p <- p - lr * (m / (sqrt(v) + eps) + weight_decay * p)

    This follows the code released with Devlin et al. (2019), except that theirs clips by the norm of all gradients
    together; clipping each on its own follows the paper's scripts. Parameters without a gradient are left unchanged.
    Gradients are clipped in place; parameters share no state, so they can come in any order and in several calls.
    """

    step_is_separable = True
    """Told to the library: each parameter is updated from its own gradient and state alone."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_norm: float = 1.0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_norm": max_norm}
        super().__init__(params, settings)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        mean, square, (first, second) = state["mean"], state["square"], group["betas"]
        grad.mul_((group["max_norm"] / (torch.linalg.vector_norm(grad) + 1e-6)).clamp(max=1.0))
        mean.mul_(first).add_(grad, alpha=1 - first)
        square.mul_(second).addcmul_(grad, grad, value=1 - second)
        # This needs one temporary of the parameter's size.
        update = square.sqrt().add_(group["eps"])
        torch.div(mean, update, out=update)
        parameter.add_(update.add_(parameter, alpha=group["weight_decay"]), alpha=-group["lr"])


def make_optimizer(workload: Workload, model: nn.Module, corrects_momentum: bool = False) -> torch.optim.Optimizer:
    """Make a recipe's optimizer for the model's parameters; those in `no_decay` have no weight decay.

    If the compressor applies momentum to gradients (`corrects_momentum`), SGD applies it to the decay alone.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        spared = any(fnmatchcase(name, pattern) for pattern in workload.no_decay)
        (others if spared else decayed).append(parameter)
    parts = ((decayed, workload.weight_decay), (others, 0.0))
    groups = [{"params": members, "weight_decay": decay} for members, decay in parts if members]
    rate, momentum, nesterov = workload.learning_rate, workload.momentum, workload.nesterov
    if corrects_momentum:
        return DGCSGD(groups, rate, decay_momentum=momentum, nesterov=nesterov)
    if workload.optimizer == "sgd":
        return torch.optim.SGD(groups, rate, momentum=momentum, nesterov=nesterov, fused=True)
    return OPTIMIZERS[workload.optimizer](groups, rate)


# The fused form needs no temporaries: torch's default on a GPU makes some as large as all parameters, in the fullest
# moment of a step. On CPUs it is the fastest, most of all for AdamW with the zeros that compression leaves.
OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "plain-sgd": partial(torch.optim.SGD, fused=True),
    "adamw": partial(torch.optim.AdamW, fused=True),
    "second-moment-adamw": SecondMomentAdamW,
    "adafactor": partial(torch.optim.Adafactor, foreach=False),
    "rmsprop": partial(torch.optim.RMSprop, foreach=False),
    "bert-adam": BertAdam,
}
"""Makes an optimizer of groups of parameters and a learning rate; SGD with momentum is the recipe's own."""
