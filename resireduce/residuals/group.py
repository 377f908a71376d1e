"""Residuals that a reusable group shares: averages, weighted averages, and one member's own."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from resireduce.errors import ConfigError, choose, is_number
from resireduce.kernels.norms import WeightedSum, l1_and_l2_norm, mean_norm
from resireduce.kernels.packed_largest import Addend
from resireduce.residuals.base import NORMS, Residual, addable, named, norm_dtype
from resireduce.residuals.stored import Stored
from resireduce.timeline import exactly

# --- What residuals that are shared by a reusable group have in common: one stored tensor, a fixed order of members ---


FLOAT32 = 4
"""Bytes of an element of the narrowest dtype in which sums are formed."""


class Folded(Protocol):
    """What the errors of some members of a group have been folded into."""

    total: Tensor
    """The sum or choice so far, of the residual's shape; in the memory of one of the errors, or in the residual's."""


F = TypeVar("F", bound=Folded)


@dataclass(slots=True)
class Group(Generic[F]):
    """One reusable group on its way through a step."""

    members: tuple[str, ...]
    """Names of the parameters that share the residual, in the order of the model."""
    stored: Stored
    """The residual that the last step left."""
    shape: torch.Size
    """The shape that each of these parameters has."""
    waiting: dict[str, Tensor] = field(default_factory=dict)
    """Errors of this step that arrived before their turn."""
    turn: int = 0
    """How many members, counted from the last, have been folded."""
    folded: F | None = None
    """What the errors have been folded into so far."""


class GroupResidual(Residual, Generic[F]):
    """Folds the errors of a group's members into one tensor, and adds it to the gradient of each in the next step.

    Errors are folded from the last member to the first, which is the order of the backward pass; a member that comes
    early waits. So rounding is always the same, and in the usual order nothing waits: beside the stored tensor, one
    more is alive while a group is on its way. Folding is done in float32 at least: in 16 bits norms and sums lose what
    small elements add.

    The folded tensor may use the memory of an error, which was a gradient's, but only until the step ends.
    """

    def __init__(self, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self._groups: dict[str, Group[F]] = {}
        self._group_of: dict[str, Group[F]] = {}

    @abstractmethod
    def fold(self, folded: F | None, error: Tensor, name: str, room: Tensor | None) -> F:
        """Return what is `folded` so far, if anything, with the `error` of member `name`; may use their memory.

        room: with the last member, memory in which the value to store may be formed; None: it is copied anyway.
        """

    @abstractmethod
    def finish(self, folded: F, room: Tensor | None) -> Tensor:
        """Return what is stored of all errors that are `folded`: in `room`, if any, or in memory of its own."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate one tensor for the whole group with its first member."""
        members = self.grouping.group_of(name)
        key = members[0]
        if key not in self._groups:
            self._groups[key] = Group(members, self.stored(parameter.shape, parameter), parameter.shape)
        self._group_of[name] = self._groups[key]

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return G + what the last step stored for the group, in the gradient's memory."""
        return self._group_of[name].stored.add_to_(grad)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Addend] | None:
        """Return `grad` and what the last step stored for the group of tensor `name`; None, if it must come first."""
        own = type(self).compensate_ is GroupResidual.compensate_
        return addable(grad, self._group_of[name].stored) if own else None

    def leaves_stored(self, name: str) -> bool:
        """Return True, unless `compensate_` is a subclass' own."""
        return type(self).compensate_ is GroupResidual.compensate_

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Fold this member's error in, if it is its turn; the last one closes the group."""
        group = self._group_of[name]
        if group.waiting or group.members[-1 - group.turn] != name:
            group.waiting[name] = error()
            self._fold_waiting(group)
        else:
            self._fold(group, name, error())
        if group.turn == len(group.members):
            self._close_step(group, step)

    def source(self, name: str, like: Tensor, step: int) -> torch.Generator | None:
        """Return the generator of the group of member `name`, which all its members share."""
        return super().source(self._group_of[name].members[0], like, step)

    def _fold_waiting(self, group: Group[F]) -> None:
        """Fold the waiting errors whose turn it is."""
        while group.turn < len(group.members) and (member := group.members[-1 - group.turn]) in group.waiting:
            self._fold(group, member, group.waiting.pop(member))

    @exactly
    def end_step(self, step: int) -> None:
        """Close the groups in which some members had no gradient in this step: the others form the average."""
        for group in self._groups.values():
            for member in reversed(group.members):
                if member in group.waiting:
                    self._fold(group, member, group.waiting.pop(member))
            if group.folded is not None:
                self._close_step(group, step)

    def _fold(self, group: Group[F], member: str, error: Tensor) -> None:
        """Fold the `error` of `member`, whose turn it is, or before which no other member will come."""
        if error.element_size() < FLOAT32:
            error = error.to(norm_dtype(error))
        error = error.contiguous()  # the error of a user's compressor may not be
        group.turn += 1
        room = group.stored.room(error.dtype) if group.turn == len(group.members) else None
        group.folded = self.fold(group.folded, error, member, room)

    def _close_step(self, group: Group[F], step: int) -> None:
        assert group.folded is not None
        self._close(group, self.rounding(group.members[0], group.folded.total, step))

    def _close(self, group: Group[F], source: torch.Generator | None) -> None:
        assert group.folded is not None
        folded, group.folded, group.turn = group.folded, None, 0
        group.stored.set_(self.finish(folded, group.stored.room(folded.total.dtype)), source)

    def stored_for(self, name: str) -> Stored:
        """Return the residual that the group of tensor `name` shares."""
        return self._group_of[name].stored

    def meaning(self) -> dict[str, str]:
        """Return the members of each group, by its first one."""
        return {f"members.{key}": ", ".join(group.members) for key, group in self._groups.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the residual of each group, named for its first member."""
        kind = type(self).__name__.removesuffix("Residual").lower()
        return named(kind, {key: group.stored for key, group in self._groups.items()})


class AverageResidual(GroupResidual[WeightedSum]):
    """Stores sum(w_i r_i) / sum(w_i), with w_i = 1: what is added to all members is what they had left, summed.

    Source: ResiReduce-a: one plain average residual for each reusable group (paper, section 4.2).
    """

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


def _alone(error: Tensor) -> Tensor:
    """Return `error`, or a copy, if it is part of a larger piece of memory, which would be held with it."""
    return error if error.untyped_storage().nbytes() == error.nbytes else error.clone()


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
        if not is_number(phi) or not 0 <= phi <= 1:
            raise ConfigError(f"phi: {phi!r} is not allowed; give the weight of the L1 norm, 0 <= phi <= 1")
        self.phi, self.norms = phi, choose("norms", norms, NORMS)
        self._weights: dict[str, Tensor] = {}

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return G + the group's residual; remember its weight, if norms are to be those of this sum."""
        compensated = super().compensate_(grad, name)
        if self.norms == "compensated":
            self._weights[name] = mean_norm(compensated, self.phi)
        return compensated

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Addend] | None:
        """Return `grad` and the residual of the group of tensor `name`; None, if norms are those of their sum."""
        own = type(self).compensate_ is WeightedResidual.compensate_ and self.norms == "residual"
        return addable(grad, self._group_of[name].stored) if own else None

    def leaves_stored(self, name: str) -> bool:
        """Return True, unless `compensate_` is a subclass' own: a weight that is remembered is replaced by the next."""
        return type(self).compensate_ is WeightedResidual.compensate_

    def weight(self, error: Tensor, name: str) -> Tensor | float:
        """Return phi, for norms of `error`; or the weight, 0-D, that the sum has had."""
        return self._weights.pop(name, self.phi)


@dataclass
class Best:
    """The error that was chosen of some members, and its norm, 0-D."""

    total: Tensor
    norm: Tensor


class MemberResidual(GroupResidual[Best]):
    """Stores the residual of the member whose L1 or L2 norm is the largest (or the smallest), and reuses it for all.

    The paper compares members this way, which led to the weights of `w`. Of equal norms the later member's is stored.

    Args:
        norm: 1 or 2. Raises ConfigError for any other.
        smallest: store the residual of the smallest norm instead.

    Source: One member's residual in place of those of a whole reusable group (paper, section 4.2, Fig. 6).
    """

    def __init__(self, *, norm: int = 1, smallest: bool = False, **options: object):
        super().__init__(**options)
        if norm not in (1, 2):
            raise ConfigError(f"norm: {norm!r} is not allowed; give 1 or 2")
        if not isinstance(smallest, bool):
            raise ConfigError(f"smallest: {smallest!r} is not allowed; give true or false")
        self.norm, self.smallest = norm, smallest

    def fold(self, folded: Best | None, error: Tensor, name: str, room: Tensor | None) -> Best:
        """Return the better of the two errors and its norm, 0-D, without waiting for a GPU to compare them."""
        norm = l1_and_l2_norm(error)[self.norm - 1]
        if folded is None:
            return Best(error.clone(), norm)
        best, best_norm = folded.total, folded.norm
        better = norm < best_norm if self.smallest else norm > best_norm
        return Best(torch.where(better, error.to(best.dtype), best, out=best), torch.where(better, norm, best_norm))

    def finish(self, folded: Best, room: Tensor | None) -> Tensor:
        """Return the error that was chosen, as it is."""
        return folded.total
