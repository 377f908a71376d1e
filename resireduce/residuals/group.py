"""Residuals that a reusable group shares: averages, weighted averages, and one member's own."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from resireduce.errors import check, choose, is_number
from resireduce.kernels.ops import l1_and_l2_norm, mean_norm
from resireduce.residuals.base import NORMS, Residual, addends_of, named, norm_dtype
from resireduce.residuals.stored import Plain, Stored


@dataclass(slots=True, eq=False)
class Group:
    """One reusable group on its way through a step."""

    members: tuple[str, ...]
    """Names of the parameters that share the residual, in the order of the model."""
    stored: Stored
    """The residual that the last step left."""
    waiting: dict[str, Tensor] = field(default_factory=dict)
    """Errors of this step that have not been folded."""
    turn: int = 0
    """How many members, counted from the last, have been folded."""
    folded: Any = None
    """What the errors have been folded into so far."""


class GroupResidual(Residual):
    """Folds the errors of a group's members into one tensor, and adds it to the gradient of each in the next step.

    Errors are folded from the last member to the first, which is the order of the backward pass; a member that comes
    early waits. So rounding is always the same, and in the usual order nothing waits: beside the stored tensor, one
    more is alive while a group is on its way. Folding is done in float32 at least: in 16 bits norms and sums lose what
    small elements add.

    The folded tensor may use the memory of an error, which was a gradient's, but only until the step ends.
    """

    def __init__(self, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self._groups: dict[str, Group] = {}
        """The group of each registered tensor."""

    @abstractmethod
    def fold(self, folded: Any, error: Tensor, name: str) -> Any:
        """Return what is `folded` so far, if anything, with the `error` of member `name`; may use their memory."""

    def finish(self, folded: Any, stored: Stored) -> Tensor:
        """Return what is to be `stored` of all errors that are `folded`, in its room or not: the first of what they
        have been folded into."""
        return folded[0]

    def register(self, name: str, parameter: Tensor) -> None:
        members = next(group for group in self.grouping.groups if name in group)
        group = next((self._groups[member] for member in members if member in self._groups), None)
        self._groups[name] = group or Group(members, self.stored(parameter.shape, parameter))
        self._stored[name] = self._groups[name].stored

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        return self._stored[name].add_to_(grad)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Tensor] | None:
        return addends_of(grad, self._stored[name])

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Fold this member's error in, if it is its turn; the last one closes the group."""
        group = self._groups[name]
        group.waiting[name] = error()
        while group.turn < len(group.members) and (member := group.members[-1 - group.turn]) in group.waiting:
            self._fold(group, member)
        if group.turn == len(group.members):
            self._close(group, step)

    def end_step(self, step: int) -> None:
        """Close the groups in which some members had no gradient in this step: the others form the average."""
        for group in dict.fromkeys(self._groups.values()):
            for member in [one for one in reversed(group.members) if one in group.waiting]:
                self._fold(group, member)
            if group.folded is not None:
                self._close(group, step)

    def _fold(self, group: Group, member: str) -> None:
        """Fold the error of `member`, whose turn it is, or before which no other member will come."""
        error = group.waiting.pop(member)
        error = error.to(norm_dtype(error)).contiguous()  # the error of a user's compressor may not be
        if group.folded is None and error.untyped_storage().nbytes() != error.nbytes:
            error = error.clone()  # the memory of which it is a part would be held with it
        group.turn += 1
        group.folded = self.fold(group.folded, error, member)

    def _close(self, group: Group, step: int) -> None:
        value = self.finish(group.folded, group.stored)
        group.folded, group.turn = None, 0
        group.stored.set_(value, self.source(group.members[0], value, step))

    def meaning(self) -> dict[str, str]:
        return {f"members.{group.members[0]}": ", ".join(group.members) for group in self._groups.values()}

    def tensors(self) -> dict[str, Tensor]:
        return named(self.kind, {group.members[0]: group.stored for group in self._groups.values()})


class AverageResidual(GroupResidual):
    """Stores sum(w_i r_i) / sum(w_i), with w_i = 1: what is added to all members is what they had left, summed.

    Source: ResiReduce-a: one plain average residual for each reusable group (paper, section 4.2).
    """

    def weight(self, error: Tensor, name: str) -> Tensor:
        """Return the weight of member `name` with this error: 0-D, on its device, so that nothing waits for a GPU."""
        return error.new_ones(())

    def fold(self, folded: tuple[Tensor, Tensor] | None, error: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return the sum of weighted errors, now with `error` of member `name`, and that of weights.

        Products, sums and quotients are each rounded, on every device: addcmul_ would round once, but not everywhere.
        """
        weight = self.weight(error, name)
        if folded is None:
            return error.mul_(weight), weight
        total, weights = folded
        return total.add_(error.mul_(weight)), weights.add_(weight)

    def finish(self, folded: tuple[Tensor, Tensor], stored: Stored) -> Tensor:
        """Return the average. If all errors are zero it is zero, not 0 / 0."""
        total, weight = folded
        # Memory of another dtype is copied to: `room` would free it.
        is_other = isinstance(stored, Plain) and stored.values.dtype != total.dtype
        room = None if is_other else stored.room(total.dtype)
        divisor = weight.clamp(min=torch.finfo(weight.dtype).tiny)
        return torch.div(total, divisor, out=total if room is None else room)


class WeightedResidual(AverageResidual):
    """The average with weights w_i = phi |x_i|_1 / n_i + (1 - phi) |x_i|_2 / sqrt(n_i).

    Args:
        phi: weight of the L1 norm, 0 to 1; the paper has 0.5.
        norms: what x_i is: "residual" (the paper) or "compensated", the gradient with the residual added to it (the
            released code).

    Raises ConfigError for other values.

    Source: ResiReduce-w: one weighted average residual for each reusable group (paper, section 4.2).
    """

    def __init__(self, *, phi: float = 0.5, norms: str = "residual", **options: object):
        super().__init__(**options)
        check("phi", phi, is_number(phi) and 0 <= phi <= 1, "the weight of the L1 norm, 0 <= phi <= 1")
        self.phi, self.norms = phi, choose("norms", norms, NORMS)
        self._weights: dict[str, Tensor] = {}

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        compensated = super().compensate_(grad, name)
        if self.norms == "compensated":
            self._weights[name] = mean_norm(compensated, self.phi)
        return compensated

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Tensor] | None:
        return super().addends(grad, name) if self.norms == "residual" else None

    def weight(self, error: Tensor, name: str) -> Tensor:
        remembered = self._weights.pop(name, None)
        return mean_norm(error, self.phi) if remembered is None else remembered


class MemberResidual(GroupResidual):
    """Stores the residual of the member whose L1 or L2 norm is the largest (or the smallest), and reuses it for all.

    The paper compares members this way, which led to the weights of `w`. Of equal norms the later member's is stored.

    Args:
        norm: 1 or 2. Raises ConfigError for any other.
        smallest: store the residual of the smallest norm instead.

    Source: One member's residual in place of those of a whole reusable group (paper, section 4.2, Fig. 6).
    """

    def __init__(self, *, norm: int = 1, smallest: bool = False, **options: object):
        super().__init__(**options)
        check("norm", norm, norm in (1, 2), "1 or 2")
        check("smallest", smallest, isinstance(smallest, bool), "true or false")
        self.norm, self.smallest = norm, smallest

    def fold(self, folded: tuple[Tensor, Tensor] | None, error: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return the better of the two errors and its norm, 0-D, without waiting for a GPU to compare them."""
        norm = l1_and_l2_norm(error)[self.norm - 1]
        if folded is None:
            return error, norm
        best, best_norm = folded
        better = norm < best_norm if self.smallest else norm > best_norm
        return torch.where(better, error.to(best.dtype), best, out=best), torch.where(better, norm, best_norm)
