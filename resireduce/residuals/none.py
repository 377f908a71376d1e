"""No residual: what is not sent is lost (paper, section 2.2, without steps 2 and 5). It is the control that shows what
residuals are worth."""

from collections.abc import Callable

from torch import Tensor

from resireduce.residuals.base import Residual


class NoResidual(Residual):
    """Stores nothing."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate nothing."""

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return the gradient itself."""
        return grad

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Drop the error, without computing it."""

    def tensors(self) -> dict[str, Tensor]:
        """Return no tensors."""
        return {}
