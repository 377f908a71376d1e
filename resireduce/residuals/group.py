"""Residuals that a reusable group shares: averages, weighted averages, and one member's own."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar

import torch
from torch import Tensor

from resireduce.errors import check, choose, is_number
from resireduce.kernels.ops import folder_of, l1_and_l2_norm, mean_norm
from resireduce.residuals.base import NORMS, InPlace, Residual, Rest, named, norm_dtype
from resireduce.residuals.stored import Plain, Stored


def is_whole(tensor: Tensor) -> bool:
    """Return whether `tensor` is no part of larger memory, which would be held with it."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def is_sum(error: Tensor) -> bool:
    """Return whether `error` has memory of its own, in the dtype of sums, so that they can be formed in it."""
    return is_whole(error) and error.dtype == norm_dtype(error)


def room_or(total: Tensor, stored: Stored) -> Tensor:
    """Return the memory of what is `stored`, if its next value can be formed there, or `total`."""
    # Memory of another dtype is copied to: `room` would free it.
    is_other = isinstance(stored, Plain) and stored.values.dtype != total.dtype
    room = None if is_other else stored.room(total.dtype)
    return total if room is None else room


@dataclass(slots=True, eq=False)
class Group:
    """One reusable group on its way through a step."""

    members: tuple[str, ...]
    """Names of the parameters that share the residual, in the order of the model."""
    stored: Stored
    """The residual that the last step left."""
    waiting: dict[str, Rest] = field(default_factory=dict)
    """Errors of this step that have not been folded, by member."""
    turn: int = 0
    """How many members, counted from the last, have been folded."""
    folded: Any = None
    """What the errors have been folded into so far."""


Turn = tuple[Group, Sequence[Rest], bool]
"""What is folded into a group at once, and whether nothing follows in this step."""


class GroupResidual(Residual):
    """Folds the errors of a group's members into one tensor, and adds it to the gradient of each in the next step.

    Errors are folded from the last member to the first, which is the order of the backward pass; a member that comes
    early waits. So rounding is always the same, and in the usual order only the first error waits, for the second,
    unless it has 16 bits: beside the stored tensor, one more is alive while a group is on its way. Folding is done in
    float32 at least: in 16 bits norms and sums lose what small elements add.

    The folded tensor may use the memory of an error, which was a gradient's, but only until the step ends.
    """

    def __init__(self, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self._groups: dict[str, Group] = {}  # of each registered tensor

    @abstractmethod
    def fold(self, folded: Any, error: Tensor, name: str) -> Any:
        """Return what is `folded` so far, if anything, with the `error` of member `name`; may use their memory."""

    def finish(self, folded: Any, stored: Stored) -> Tensor:
        """Return what is to be `stored` of all errors that are `folded`, in its room or not: the first of what they
        have been folded into."""
        return folded[0]

    def fold_each(self, turns: Sequence[Turn]) -> Iterator[Tensor | None]:
        """Fold errors into their groups, one group after the other; yield what is to be stored of those that end."""
        for group, rests, ends in turns:
            for name, error, _ in rests:
                wide = error.to(norm_dtype(error)).contiguous()  # the error of a user's compressor may not be
                if group.folded is None and not is_whole(wide):
                    wide = wide.clone()
                group.folded = self.fold(group.folded, wide, name)
            yield self.finish(group.folded, group.stored) if ends else None

    def register(self, name: str, parameter: Tensor) -> None:
        members = next(group for group in self.grouping.groups if name in group)
        group = next((self._groups[member] for member in members if member in self._groups), None)
        self._groups[name] = group or Group(members, self.stored(parameter.shape, parameter))
        self._stored[name] = self._groups[name].stored

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        return self._stored[name].add_to_(grad)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
        """Return `grad`, and the group's residual; or the sum, if that is not stored in the gradient's own dtype."""
        stored = self._stored[name]
        return (grad, stored.values) if isinstance(stored, InPlace) else (stored.add_to_(grad), None)

    def only_adds(self, name: str) -> bool:
        return isinstance(self._stored.get(name), InPlace)

    def leaves_stored(self, name: str) -> bool:
        return True

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        GroupResidual.update_each(self, [(name, error(), None)], step)  # a subclass' own calls this

    def update_each(self, rests: Sequence[Rest], step: int) -> None:
        """Fold in the errors of these members, if it is their turn; the last one closes its group."""
        for rest in rests:
            self._groups[rest[0]].waiting[rest[0]] = rest
        turns: list[Turn] = []
        for group in dict.fromkeys(self._groups[name] for name, *_ in rests):
            to_come = reversed(group.members[: len(group.members) - group.turn])
            due = [*takewhile(group.waiting.__contains__, to_come)]
            if due and (group.turn or len(due) > 1 or not is_sum(group.waiting[due[0]][1])):
                group.turn += len(due)
                turns.append((group, [*map(group.waiting.pop, due)], group.turn == len(group.members)))
        self._fold(turns, step)

    def end_step(self, step: int) -> None:
        """Close the groups in which some members had no gradient in this step: the others form the average."""
        turns: list[Turn] = []
        for group in dict.fromkeys(self._groups.values()):
            waiting = [group.waiting.pop(name) for name in reversed(group.members) if name in group.waiting]
            if waiting or group.turn:
                turns.append((group, waiting, True))
        for waited in (True, False):  # those of which nothing waits need no launch
            self._fold([turn for turn in turns if bool(turn[1]) == waited], step)

    def _fold(self, turns: Sequence[Turn], step: int) -> None:
        """Fold errors into their groups, and store what is to be of those that end."""
        for (group, *_), value in zip(turns, self.fold_each(turns), strict=True):
            if value is not None:
                group.folded, group.turn = None, 0
                group.stored.set_(value, self.source(group.members[0], value, step))
            del value  # before the next group's is formed

    def meaning(self) -> dict[str, str]:
        return {f"members.{group.members[0]}": ", ".join(group.members) for group in self._groups.values()}

    def tensors(self) -> dict[str, Tensor]:
        return named(self.kind, {group.members[0]: group.stored for group in self._groups.values()})


class AverageResidual(GroupResidual):
    """Stores sum(w_i r_i) / sum(w_i), with w_i = 1: what is added to all members is what they had left, summed.

    Source: ResiReduce-a: one plain average residual for each reusable group (paper, section 4.2).
    """

    INSTEAD: ClassVar = GroupResidual.INSTEAD | {name: {"fold_each"} for name in ("weight", "fold", "finish")}
    phi: float | None = None
    """Weight of the L1 norm in the weights; None: all weights are 1."""

    def __init__(self, **options: object):
        super().__init__(**options)
        self._weights: dict[str, Tensor] = {}
        """Weights that are known before the errors are."""

    def weight(self, x: Tensor) -> Tensor:
        """Return the weight of an error: 0-D, on the device of `x`, so that nothing waits for a GPU."""
        return x.new_ones(()) if self.phi is None else mean_norm(x, self.phi)

    def fold_each(self, turns: Sequence[Turn]) -> Iterator[Tensor | None]:
        errors = [error for _, rests, _ in turns for _, error, _ in rests]
        begun = [group.folded[0] for group, *_ in turns if group.folded is not None]
        known = not self._weights and all(rests for _, rests, _ in turns)
        together = known and all(one.dtype == torch.float32 for one in begun) and errors
        fold = folder_of(errors) if together else None
        return super().fold_each(turns) if fold is None else self._fold_at_once(turns, fold)

    def _fold_at_once(self, turns: Sequence[Turn], fold: Callable[..., Sequence[Tensor]]) -> Iterator[Tensor | None]:
        sums, errors, into = [], [], []
        for group, rests, ends in turns:
            total, weights = group.folded or (None, None)
            if total is None:
                first = rests[0][1]
                reused = first.dtype == torch.float32 and is_whole(first)
                total = first if reused else torch.empty_like(first, dtype=torch.float32)
            sums.append((total, weights))
            errors.append([(error, norms) for _, error, norms in rests])
            into.append((room_or(total, group.stored) if ends else total, ends))
        made = fold(sums, errors, into, self.phi)
        for (group, *_), (total, _), (to, ends), weights in zip(turns, sums, into, made, strict=True):
            group.folded = total, weights
            yield to if ends else None

    def fold(self, folded: tuple[Tensor, Tensor] | None, error: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return the sum of weighted errors, now with `error` of member `name`, and that of weights."""
        weight = self._weights.pop(name, None)
        if weight is None:
            weight = self.weight(error)
        if folded is None:
            return error.mul_(weight), weight
        total, weights = folded
        return total.add_(error.mul_(weight)), weights.add_(weight)  # addcmul_ would round once, but not everywhere

    def finish(self, folded: tuple[Tensor, Tensor], stored: Stored) -> Tensor:
        """Return the average. If all errors are zero it is zero, not 0 / 0."""
        total, weight = folded
        return torch.div(total, weight.clamp(min=torch.finfo(weight.dtype).tiny), out=room_or(total, stored))


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
        self.weighs = self.norms == "residual"

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        compensated = super().compensate_(grad, name)
        if self.norms == "compensated":
            self._weights[name] = self.weight(compensated)
        return compensated

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
        return super().addends(grad, name) if self.norms == "residual" else (self.compensate_(grad, name), None)

    def only_adds(self, name: str) -> bool:
        return self.norms == "residual" and super().only_adds(name)

    def leaves_stored(self, name: str) -> bool:
        return self.norms == "residual"


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
