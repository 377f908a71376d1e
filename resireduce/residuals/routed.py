"""A scheme: each tensor has the residual of its kind."""

from collections.abc import Callable, Mapping

from torch import Tensor

from resireduce.grouping import Grouping
from resireduce.residuals.base import Residual
from resireduce.residuals.stored import Stored


class RoutedResidual(Residual):
    """Sends each call to the residual that `routes` names for the tensor, or to `other`."""

    def __init__(self, routes: Mapping[str, Residual], other: Residual):
        super().__init__(grouping=Grouping())
        self._routes, self._other = dict(routes), other
        self._parts = list(dict.fromkeys([*self._routes.values(), other]))

    def _part(self, name: str) -> Residual:
        return self._routes.get(name, self._other)

    def register(self, name: str, parameter: Tensor) -> None:
        """Register with the part that is responsible."""
        self._part(name).register(name, parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """As the responsible part does."""
        return self._part(name).compensate_(grad, name)

    def update(self, name: str, error: Callable[[], Tensor]) -> None:
        """As the responsible part does."""
        self._part(name).update(name, error)

    def absorbs(self, name: str) -> bool:
        """Whether the responsible part does."""
        return self._part(name).absorbs(name)

    def host_tensors(self) -> list[Tensor]:
        """Those of all parts."""
        return [tensor for part in self._parts for tensor in part.host_tensors()]

    def stored_for(self, name: str) -> Stored | None:
        """What the responsible part has."""
        return self._part(name).stored_for(name)

    def end_step(self) -> None:
        """For every part."""
        super().end_step()
        for part in self._parts:
            part.end_step()

    def start_at(self, step: int) -> None:
        """All parts, too."""
        super().start_at(step)
        for part in self._parts:
            part.start_at(step)

    def tensors(self) -> dict[str, Tensor]:
        """Those of all parts; each part puts its own kind before the names."""
        return {name: tensor for part in self._parts for name, tensor in part.tensors().items()}
