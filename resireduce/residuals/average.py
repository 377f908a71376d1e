"""ResiReduce-a: one plain average residual for each reusable group (paper, section 4.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.residuals.base import norm_dtype
from resireduce.residuals.group import Group, GroupResidual


@dataclass(frozen=True)
class _Member:
    """Where the parts of a member's error go."""

    target: Tensor  # 1-D
    weight: Tensor | None  # None: it waits for its turn
    adds: bool  # whether errors of other members are there already


class AverageResidual(GroupResidual):
    """Stores sum(w_i r_i) / sum(w_i), with w_i = 1: what is added to all members is what they had left, summed."""

    def weight(self, error: Tensor, name: str) -> Tensor:
        """Return the weight of member `name` with this error: 0-D, on its device, so that nothing waits for a GPU."""
        return error.new_ones(())

    def fold(self, folded: tuple[Tensor, Tensor] | None, error: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of errors, now with `error` of member `name`, and the sum of weights, 0-D."""
        weight = self.weight(error, name)
        if folded is None:
            return torch.mul(error, weight), weight
        total, weights = folded
        return total.addcmul_(error, weight), weights + weight

    def takes_parts(self, name: str) -> bool:
        """Whether what is stored can be read some elements at a time: not in the host's memory."""
        return self._group_of[name].stored.cuts

    def compensate_part_(self, grad: Tensor, name: str, start: int) -> Tensor:
        """Add what the last step stored for the group, from element `start` on, to `grad`; return it."""
        return self._group_of[name].stored.add_part_to_(grad, start)

    def update_part(self, error: Tensor, name: str, start: int, source: torch.Generator | None) -> None:
        """Fold a part of this member's error in, if it is its turn; else it waits, as a whole. The last one closes."""
        group, flat = self._group_of[name], error.view(-1)
        if start == 0:
            self._member = self._begin(group, error, name)
        member, stop = self._member, start + flat.numel()
        target = member.target[start:stop]
        if member.weight is None:
            target.copy_(flat)
        elif member.adds:
            target.addcmul_(flat.to(target.dtype), member.weight)
        else:
            torch.mul(flat.to(target.dtype), member.weight, out=target)
        if stop == member.target.numel():
            group.turn += member.weight is not None
            del self._member
            if self._fold_waiting(group):
                self._close(group, source)

    def _begin(self, group: Group, like: Tensor, name: str) -> _Member:
        """Make room for the error of member `name`, with dtype and device of `like`, of which all parts will come."""
        if group.members[-1 - group.turn] != name:
            waiting = group.waiting[name] = like.new_empty(group.shape)
            return _Member(waiting.view(-1), None, adds=False)
        weight, folded = self.weight(like.to(norm_dtype(like)), name), group.folded
        if folded is None:
            group.folded = like.new_empty(group.shape, dtype=norm_dtype(like)), weight
        else:
            group.folded = folded[0], folded[1] + weight
        return _Member(group.folded[0].view(-1), weight, folded is not None)

    def finish(self, total: Tensor, weight: Tensor) -> Tensor:
        """Return the average, in the memory of `total`. If all errors are zero it is zero, not 0 / 0."""
        return total.div_(weight.clamp(min=torch.finfo(weight.dtype).tiny))
