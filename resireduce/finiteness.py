"""Checks whether gradients are finite: each at once or, where the host would wait for a device, once per step."""

from cmath import isfinite
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from resireduce import private
from resireduce.errors import NonFiniteGradient

AT_ONCE = ("cpu", "meta")
"""Types of devices on which the host need not wait for an answer."""


class Finiteness:
    """Keeps NaN and infinity out of residuals and messages.

    Args:
        at_once: whether each gradient is checked when it comes. False: only those on a CPU; on other devices a gradient
            that is not finite is replaced by zeros, and the host asks once, at the end of a step, if there was any.
    """

    def __init__(self, at_once: bool = True):
        self.at_once = at_once
        self.restart()

    def check_(self, grad: Tensor, name: str) -> None:
        """Raise NonFiniteGradient if `grad`, of tensor `name`, holds NaN or infinity; or note that, and fill it with 0.

        In the second case the host does not wait for the device: `failure` tells.
        """
        if self.checks_at_once(grad):
            check_finite(grad, name)
        elif grad.numel():
            self._noted.append(([name], zero_unless_finite_(grad).view(1)))

    def check_together_(self, packed: Tensor, gradients: Mapping[str, Tensor]) -> None:
        """Check several `gradients`, by the names of their tensors, as `check_` does where it does not raise.

        `packed` is a copy of them in one tensor: it is filled with 0 if any of them holds NaN or infinity.
        """
        there = {name: grad for name, grad in gradients.items() if grad.numel()}
        if there:
            zero_unless_finite_(packed)
            fine = torch.stack(private.norm_of_each([*there.values()], torch.inf)) < torch.inf
            self._noted.append(([*there], fine))

    def note(self, names: Sequence[str], spoilt: Tensor) -> None:
        """Note which gradients, of tensors `names`, a device has found not to be finite: `spoilt` is 1 there, or 0."""
        self._noted.append((names, spoilt.eq(0)))

    def checks_at_once(self, grad: Tensor) -> bool:
        """Return whether `check_` of `grad` has the host wait for the answer, and raises at once."""
        return self.at_once or grad.device.type in AT_ONCE

    def failure(self) -> NonFiniteGradient | None:
        """Return the error of the first gradient that was noted and was not finite, and forget all; None: all were."""
        noted = self._noted
        self.restart()
        if not noted:
            return None
        fine = torch.cat([one.to(noted[0][1].device) for _, one in noted]).tolist()  # the host waits once
        names = (name for names, _ in noted for name in names)
        spoilt = next((name for name, is_fine in zip(names, fine, strict=True) if not is_fine), None)
        return None if spoilt is None else NonFiniteGradient(_text(spoilt, "nothing of it was sent"))

    def restart(self) -> None:
        """Forget which gradients have been noted in this step, whether they were finite or not."""
        self._noted: list[tuple[Sequence[str], Tensor]] = []
        """Names of tensors, in the order in which gradients came, and which of these were finite: 1-D."""


def is_finite(x: Tensor) -> bool:
    """Return whether no element of `x` is NaN or infinite; True without storage. The host waits for the device of `x`.

    A finite sum proves it, and is cheaper than the largest magnitude, which is computed if the sum is not finite.
    """
    return x.is_meta or isfinite(x.sum().item()) or isfinite(torch.linalg.vector_norm(x, torch.inf).item())


def check_finite(grad: Tensor, name: str) -> None:
    """Raise NonFiniteGradient, which says `name`, if an element of `grad` is NaN or infinite."""
    if not is_finite(grad):
        raise NonFiniteGradient(refusal(name))


def refusal(name: str) -> str:
    """Return the error message for tensor `name`, whose gradient is not finite and has not entered the residual."""
    return _text(name, "its residual is unchanged")


def zero_unless_finite_(grad: Tensor) -> Tensor:
    """Fill `grad` with zeros if it is not finite; return whether it was: 0-D bool. The host does not wait."""
    fine = torch.linalg.vector_norm(grad, torch.inf) < torch.inf  # NaN is not less either
    grad.masked_fill_(fine.logical_not(), 0.0)
    return fine


def _text(name: str, done: str) -> str:
    return (
        f"the gradient of {name!r} holds NaN or infinity; {done}. "
        "Lower the learning rate, or look at the loss of this step"
    )
