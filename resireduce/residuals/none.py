"""No residual: what is not sent is lost (paper, section 2.2, without steps 2 and 5). The control that shows what
residuals are worth."""

from collections.abc import Callable

from torch import Tensor

from resireduce.residuals.base import Residual


class NoResidual(Residual):
    """Stores nothing."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Nothing to allocate."""

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """The gradient itself."""
        return grad

    def update(self, name: str, error: Callable[[], Tensor]) -> None:
        """The error is dropped without being computed."""

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}
