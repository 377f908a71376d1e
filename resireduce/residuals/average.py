"""ResiReduce-a: one plain average residual for each reusable group (paper, section 4.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.kernels.averages import WeightedSum, add_weighted_
from resireduce.kernels.norms import mean_norm
from resireduce.residuals.base import norm_dtype
from resireduce.residuals.group import Group, GroupResidual


@dataclass(frozen=True)
class _Member:
    """Where the parts of a member's error go."""

    target: Tensor  # 1-D
    weight: Tensor | None  # None: it waits for its turn
    adds: bool  # whether errors of other members are there already


class AverageResidual(GroupResidual[WeightedSum]):
    """Stores sum(w_i r_i) / sum(w_i), with w_i = 1: what is added to all members is what they had left, summed."""

    def weight(self, error: Tensor, name: str) -> Tensor | float:
        """Return the weight of member `name` with this error: 0-D, on its device, so that nothing waits for a GPU.

        Or phi, if it is `mean_norm(error, phi)`, which is formed where `error` is added.
        """
        return error.new_ones(())

    def _weight(self, error: Tensor, name: str, is_first: bool) -> Tensor | float:
        """Return the weight in the dtype of `error`, or phi; in memory of its own, if others are added to it."""
        weight = self.weight(error, name)
        return weight.to(error.dtype, copy=is_first) if isinstance(weight, Tensor) else weight

    def fold(self, folded: WeightedSum | None, error: Tensor, name: str, room: Tensor | None) -> WeightedSum:
        """Return the weighted sum of errors, now with `error` of member `name`, or with the last one their average.

        The first error is kept as it is: it is weighed, and multiplied by its weight, where the second is added.
        """
        weight = self._weight(error, name, folded is None)
        if folded is None:
            return WeightedSum(_alone(error), weight)
        folded.add(error, weight, room)
        return folded

    def finish(self, folded: WeightedSum, room: Tensor | None) -> Tensor:
        """Return the average. If all errors are zero it is zero, not 0 / 0."""
        if folded.is_average:
            return folded.total
        total, weight = folded.multiplied()
        divisor = weight.clamp(min=torch.finfo(weight.dtype).tiny)
        return torch.div(total, divisor, out=total if room is None else room)

    def takes_parts(self, name: str) -> bool:
        """Whether what is stored can be read some elements at a time: not in the host's memory."""
        return self._group_of[name].stored.cuts

    def compensate_part_(self, grad: Tensor, name: str, start: int) -> Tensor:
        """Add what the last step stored for the group, from element `start` on, to `grad`; return it."""
        return self._group_of[name].stored.add_part_to_(grad, start)

    def update_part(self, error: Tensor, name: str, start: int, source: torch.Generator | None) -> None:
        """Fold a part of this member's error in, if it is its turn; otherwise the whole error waits. The last part of
        the last member closes the group."""
        group, flat = self._group_of[name], error.view(-1)
        if start == 0:
            self._member = self._begin(group, error, name)
        member, stop = self._member, start + flat.numel()
        target = member.target[start:stop]
        if member.weight is None:
            target.copy_(flat)
        elif member.adds:
            add_weighted_(target, flat.to(target.dtype), member.weight)
        else:
            torch.mul(flat.to(target.dtype), member.weight, out=target)
        if stop == member.target.numel():
            group.turn += member.weight is not None
            del self._member
            self._fold_waiting(group)
            if group.turn == len(group.members):
                self._close(group, source)

    def _begin(self, group: Group[WeightedSum], like: Tensor, name: str) -> _Member:
        """Make room for the error of member `name`, with dtype and device of `like`, of which all parts will come."""
        if group.members[-1 - group.turn] != name:
            waiting = group.waiting[name] = like.new_empty(group.shape)
            return _Member(waiting.view(-1), None, adds=False)
        exact, folded = like.to(norm_dtype(like)), group.folded
        own = self._weight(exact, name, folded is None)
        weight = own if isinstance(own, Tensor) else mean_norm(exact, own)
        if folded is None:
            total, weights = like.new_empty(group.shape, dtype=norm_dtype(like)), weight
        else:
            total, so_far = folded.multiplied()
            weights = so_far + weight
        group.folded = WeightedSum(total, weights, is_one=False)
        return _Member(total.view(-1), weight, folded is not None)


def _alone(error: Tensor) -> Tensor:
    """Return `error`, or a copy, if it is part of a larger piece of memory, which would be held with it."""
    return error if error.untyped_storage().nbytes() == error.nbytes else error.clone()
