"""Which object takes the gradient of a weight that layers make row by row, and the uses of that weight."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from resireduce.slices.row_gradients import PlannedRows, RowGradient

TAKERS = WeakTensorKeyDictionary()
"""The Taker of each weight whose gradient is taken in slices."""


@dataclass(frozen=True)
class Taker:
    """Takes the gradient of one weight in slices."""

    node: Any
    """The node of autograd's graph that accumulates the weight's gradient."""
    take: Callable[[RowGradient], bool]
    """Absorbs the gradient; False: it must be whole."""
    uses: "WeakSet[Any]" = field(default_factory=WeakSet)
    """The nodes of autograd's graphs that use the weight and make its gradient row by row."""

    def took(self, make: Callable[[], RowGradient]) -> bool:
        """Whether the gradient that `make` returns was taken: not if the caller of autograd wants it, or its graph, or
        if the weight was frozen after the forward pass, so that autograd will drop it."""
        if torch.is_grad_enabled() or not self.node.variable.requires_grad:
            return False
        try:
            accumulates = torch._C._will_engine_execute_node(self.node)
        except RuntimeError:  # torch.autograd.grad() of the weight
            return False
        return accumulates and self.take(make())


class _Planned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, taker: Taker) -> Tensor:
        ctx.parameter, ctx.taker = parameter, taker
        return torch.empty((), device=parameter.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        taken = ctx.taker.took(lambda: PlannedRows(ctx.parameter))
        return None if taken else torch.empty_like(ctx.parameter), None


def is_by_rows(parameter: Tensor) -> bool:
    """Whether the gradient of `parameter` is made row by row by the layers that hold it."""
    return parameter in TAKERS


def is_used_again(parameter: Tensor) -> bool:
    """Whether the backward pass under way comes to several uses of `parameter` that make its gradient row by row."""
    taker = TAKERS.get(parameter)
    uses = () if taker is None else tuple(taker.uses)
    return len(uses) > 1 and sum(map(torch._C._will_engine_execute_node, uses)) > 1


def planned_use(parameter: Tensor, whole: bool) -> Tensor:
    """Return a 0-D tensor whose backward pass makes a gradient of `parameter`, without storage, as its layers do.

    whole: whether other layers that share it have made their part of the gradient as a whole.
    """
    taker = TAKERS.get(parameter)
    if taker is None:
        return parameter.sum()
    by_rows: Tensor = _Planned.apply(parameter, taker)
    return by_rows + parameter.sum() if whole else by_rows
