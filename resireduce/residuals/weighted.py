"""ResiReduce-w: one weighted average residual for each reusable group (paper, section 4.2)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resireduce.errors import ConfigError
from resireduce.residuals.base import Residual, norm_dtype


@dataclass
class _Group:
    members: tuple[str, ...]
    stored: Tensor
    waiting: dict[str, Tensor] = field(default_factory=dict)
    """Errors of this step that arrived before their turn."""
    turn: int = 0
    """How many members, counted from the last, have been folded into the sum or passed over."""
    total: Tensor | None = None
    weights: Tensor | None = None


class WeightedResidual(Residual):
    """Stores war = sum(w_i r_i) / sum(w_i) for a group, and adds it to the gradient of every member in the next step.

    w_i = phi |r_i|_1 / n_i + (1 - phi) |r_i|_2 / sqrt(n_i). The sum is folded from the last member to the first, which
    is the order of the backward pass; a member that comes early waits. So the sum's rounding is always the same, and
    in the usual order nothing waits: beside the stored average, one sum is alive while a group is on its way. Norms
    and sum are formed in float32 at least: in 16 bits both lose what small elements add.
    """

    def __init__(self, *, phi: float = 0.5, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        if not 0 <= phi <= 1:
            raise ConfigError(f"phi: {phi!r} is not allowed; give the weight of the L1 norm, 0 <= phi <= 1")
        self.phi = phi
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """One tensor for the whole group, allocated with its first member."""
        members = self.grouping.group_of(name)
        key = members[0]
        if key not in self._groups:
            self._groups[key] = _Group(members, self.zeros(parameter.shape, parameter))
        self._group_of[name] = self._groups[key]

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """G + last step's average, in the gradient's memory."""
        return grad.add_(self._group_of[name].stored)

    def update(self, name: str, error: Callable[[], Tensor]) -> None:
        """Fold this member's error in, if it is its turn; the last one closes the group."""
        group = self._group_of[name]
        group.waiting[name] = error()
        while group.turn < len(group.members) and (member := group.members[-1 - group.turn]) in group.waiting:
            self._fold(group, group.waiting.pop(member))
            group.turn += 1
        if group.turn == len(group.members):
            self._close(group)

    def end_step(self) -> None:
        """Close the groups of which not all members had a gradient in this step: the others make the average."""
        for group in self._groups.values():
            for member in reversed(group.members):
                if member in group.waiting:
                    self._fold(group, group.waiting.pop(member))
            if group.total is not None:
                self._close(group)
            group.turn = 0

    def _fold(self, group: _Group, error: Tensor) -> None:
        wide = error.to(norm_dtype(error))
        weight = self._weight(wide)
        if group.total is None or group.weights is None:
            group.total, group.weights = torch.mul(wide, weight), weight
        else:
            group.total.addcmul_(wide, weight)
            group.weights = group.weights + weight

    def _weight(self, error: Tensor) -> Tensor:
        """0-D, on the error's device: nothing waits for the GPU."""
        n = error.numel()
        l1, l2 = torch.linalg.vector_norm(error, 1), torch.linalg.vector_norm(error, 2)
        return self.phi * l1 / n + (1 - self.phi) * l2 / n**0.5

    def _close(self, group: _Group) -> None:
        assert group.total is not None and group.weights is not None
        # All errors zero: the sum is zero and so must the average be, not 0 / 0.
        average = group.total.div_(group.weights.clamp(min=torch.finfo(group.weights.dtype).tiny))
        group.stored = average.to(group.stored.dtype)
        group.total = group.weights = None
        group.turn = 0

    def tensors(self) -> dict[str, Tensor]:
        """One for each group, named for its first member."""
        return {f"weighted.{key}": group.stored for key, group in self._groups.items()}
