"""Checks whether gradients are finite: each at once or, where the host would wait for a device, once per step."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resireduce.errors import NonFiniteGradient
from resireduce.kernels.norms import is_finite
from resireduce.kernels.on_gpu import in_triton

if TYPE_CHECKING:
    from resireduce.kernels.gpu.finite import Answers

AT_ONCE = ("cpu", "meta")
"""Types of devices that answer at once."""


class Finiteness:
    """Keeps NaN and infinity out of residuals and messages.

    Args:
        at_once: whether each gradient is checked when it comes. False: only those on a CPU; on other devices a gradient
            that is not finite is replaced by zeros, and the host asks once, at the end of a step, if there was any.
    """

    def __init__(self, at_once: bool = True):
        self.at_once = at_once
        self._noted: list[tuple[str, Tensor]] = []
        self._answers: Answers | None = None

    def check_(self, grad: Tensor, name: str) -> None:
        """Raise NonFiniteGradient if `grad`, of tensor `name`, holds NaN or infinity; or note that, and fill it with 0.

        In the second case the host does not wait for the device: `failure` tells.
        """
        if self.asks(grad):
            check_finite(grad, name)
        elif grad.numel():
            self._noted.append((name, self._zero_unless_finite_(grad)))

    def _zero_unless_finite_(self, grad: Tensor) -> Tensor:
        if not in_triton(grad):
            return zero_unless_finite_(grad)
        from resireduce.kernels.gpu import finite

        self._answers = self._answers or finite.Answers()
        return finite.zero_unless_finite_(grad, self._answers)

    def asks(self, grad: Tensor) -> bool:
        """Return whether `check_` of `grad` asks, and raises, at once."""
        return self.at_once or grad.device.type in AT_ONCE

    def failure(self) -> NonFiniteGradient | None:
        """Return the error of the first gradient that was noted and was not finite, and forget all; None: all were."""
        noted, self._noted = self._noted, []
        if not noted:
            return None
        device = noted[0][1].device
        found = torch.stack([fine.to(device) for _, fine in noted]).tolist()
        spoilt = [name for (name, _), fine in zip(noted, found, strict=True) if not fine]
        return NonFiniteGradient(_text(spoilt[0], "nothing of it was sent")) if spoilt else None

    def restart(self) -> None:
        """Forget which gradients have been noted in this step, whether they were finite or not."""
        self._noted = []


def check_finite(grad: Tensor, name: str) -> None:
    """Raise NonFiniteGradient, which says `name`, if an element of `grad` is NaN or infinite."""
    if not is_finite(grad):
        raise NonFiniteGradient(refused(name))


def refused(name: str) -> str:
    """Return what is said of tensor `name`, whose gradient is not finite and came no further than here."""
    return _text(name, "its residual is unchanged")


def zero_unless_finite_(grad: Tensor) -> Tensor:
    """Fill `grad` with zeros if it holds NaN or infinity, without a question; return whether it held none: 0-D bool."""
    fine = torch.linalg.vector_norm(grad, torch.inf) < torch.inf  # NaN is not less either
    grad.masked_fill_(fine.logical_not(), 0.0)
    return fine


def _text(name: str, done: str) -> str:
    return (
        f"the gradient of {name!r} holds NaN or infinity; {done}. "
        "Lower the learning rate, or look at the loss of this step"
    )
