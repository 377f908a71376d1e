"""A scheme: each tensor has the residual of its kind."""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from resireduce.grouping import Grouping
from resireduce.kernels.packed_largest import Addend
from resireduce.residuals.base import Residual
from resireduce.residuals.stored import Stored


class RoutedResidual(Residual):
    """Forwards each call to the residual that `routes` names for the tensor, or to `other`."""

    def __init__(self, routes: Mapping[str, Residual], other: Residual):
        super().__init__(grouping=Grouping())
        self._routes, self._other = dict(routes), other
        self._parts = list(dict.fromkeys([*self._routes.values(), other]))

    @classmethod
    def by_kind(cls, grouping: Grouping, grouped: Residual, specific: Residual, other: Residual) -> "RoutedResidual":
        """Return it for the members of groups of `grouping`, which go to `grouped`, its specific layers, which go to
        `specific`, and all else, which goes to `other`."""
        routes = dict.fromkeys(grouping.grouped, grouped) | dict.fromkeys(grouping.specific, specific)
        return cls(routes, other)

    def part_of(self, name: str) -> Residual:
        """Return the residual to which calls for tensor `name` are forwarded; where `update` may do more, this one."""
        return self._part(name) if type(self) is RoutedResidual and "update" not in vars(self) else self

    def _part(self, name: str) -> Residual:
        return self._routes.get(name, self._other)

    def check(self, names: Collection[str]) -> None:
        """Have each part check its options with those of `names` that it is responsible for."""
        for part in self._parts:
            part.check([name for name in names if self._part(name) is part])

    def register(self, name: str, parameter: Tensor) -> None:
        """Register with the part that is responsible."""
        self._part(name).register(name, parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return gradient + residual, as the responsible part forms it."""
        return self._part(name).compensate_(grad, name)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Addend] | None:
        """Return the addends of the part responsible for tensor `name` and gradient `grad`, if it has any."""
        own = type(self).compensate_ is RoutedResidual.compensate_
        return self._part(name).addends(grad, name) if own else None

    def leaves_stored(self, name: str) -> bool:
        """Whether the responsible part forms the sum in the gradient's memory."""
        return type(self).compensate_ is RoutedResidual.compensate_ and self._part(name).leaves_stored(name)

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the error in the responsible part."""
        self._part(name).update(name, error, step)

    def restore(self, name: str, value: Tensor, step: int) -> None:
        """Store `value` of tensor `name` in the responsible part; `step` as there."""
        self._part(name).restore(name, value, step)

    def source(self, name: str, like: Tensor, step: int) -> torch.Generator | None:
        """Return the responsible part's generator for tensor `name` in step number `step`."""
        return self._part(name).source(name, like, step)

    def absorbs(self, name: str) -> bool:
        """Whether the responsible part adds the gradient into what is stored."""
        return self._part(name).absorbs(name)

    def absorbed(self, name: str) -> Tensor:
        """Return residual + absorbed gradients, in the memory of the responsible part."""
        return self._part(name).absorbed(name)

    def host_tensors(self) -> list[Tensor]:
        """Return the tensors of all parts that are held in the host's memory."""
        return [tensor for part in self._parts for tensor in part.host_tensors()]

    def stored_for(self, name: str) -> Stored | None:
        """Return what the responsible part reads for tensor `name`, if it reads anything."""
        return self._part(name).stored_for(name)

    def end_step(self, step: int) -> None:
        """End the step of every part."""
        for part in self._parts:
            part.end_step(step)

    def meaning(self) -> dict[str, str]:
        """Return the meaning of all parts."""
        return {name: text for part in self._parts for name, text in part.meaning().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of all parts; each part prefixes the names with its kind."""
        return {name: tensor for part in self._parts for name, tensor in part.tensors().items()}
