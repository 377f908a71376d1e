"""The first half of a step: gradients arrive, and are compressed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.clip import clip_factor
from resireduce.error_feedback import ErrorFeedback, check_finite
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.slot import Slot


class Intake:
    """Takes gradients as autograd finishes them; with `waits`, all of them once the last has come.

    It waits where the whole gradient of a rank is to be clipped or checked, which only kept gradients can be.

    Args:
        slots: one for each parameter.
        feedback: compresses them.
        streamed: whether gradients are freed once they are compressed.
        max_norm: kept only: the whole gradient of this rank is scaled so that its norm is this at most.
        scaler: whose scale gradients are divided by before anything else is done with them.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        feedback: ErrorFeedback,
        *,
        streamed: bool,
        max_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ):
        self.slots, self.feedback, self.streamed = slots, feedback, streamed
        self.max_norm, self.scaler = max_norm, scaler
        self.waits = not streamed and (max_norm is not None or scaler is not None)
        self.restart()

    def restart(self) -> None:
        """Forget the last step."""
        self.arrived: list[Slot] = []
        self.holds = False  # whether an earlier pass of this step left gradients in .grad
        self.non_finite: NonFiniteGradient | None = None
        self._inverse_scale: float | None = None
        for slot in self.slots:
            slot.restart()

    @property
    def has_begun(self) -> bool:
        """Whether gradients of this step are compressed, or absorbed, already."""
        return bool(self.arrived) or any(slot.absorbed or slot.dropped for slot in self.slots)

    def hold(self, slot: Slot) -> None:
        """A pass of `slot`'s that is not its last in this step: a residual absorbs the gradient, or it stays."""
        grad = slot.parameter.grad
        if not (self.streamed and self.feedback.absorbs(slot.name)) or grad is None or grad.layout != torch.strided:
            self.holds = True
            return
        try:
            self.feedback.absorb(self._unscale_(grad), slot.name)
            slot.absorbed = True
        except NonFiniteGradient as error:
            self._drop(slot, error)
        slot.parameter.grad = None

    def take(self, slot: Slot, step: int) -> None:
        """Compress `slot`'s gradient of this `step`; streamed, its payload is all that is left of it."""
        grad = self._gradient(slot)
        try:
            slot.payload = self.feedback.compress(grad.contiguous(), slot.name, step)
        except NonFiniteGradient as error:
            self._drop(slot, error)
            return
        slot.present = True
        self.arrived.append(slot)
        if self.streamed:
            slot.parameter.grad = None
            slot.remember_sent(self.scaler is not None and self.feedback.keeps_residual(slot.name))
        else:
            slot.seal()

    def finish(self, step: int) -> bool:
        """Take what is left of this `step`. False: some rank's gradient overflowed, and nothing has been compressed."""
        if self.waits:
            self._prepare(self._pending())
            if self.scaler is not None and self._anywhere(self.non_finite is not None):
                return False
        for slot in self._pending():
            self.take(slot, step)
        self.holds = False
        return True

    def _pending(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.passes and not slot.present and not slot.dropped]

    def _gradient(self, slot: Slot) -> Tensor:
        """What has come of a tensor in this step, but for what is absorbed already; unscaled."""
        grad = slot.parameter.grad
        if grad is None and slot.absorbed:
            return torch.zeros_like(slot.parameter)
        if grad is None:
            raise UsageError(
                f"the gradient of {slot.name!r} was dropped between two backward passes of one step: call zero_grad() "
                "only before the first"
            )
        if grad.layout != torch.strided:
            raise UsageError(f"the gradient of {slot.name!r} is sparse: make its layer with sparse=False")
        return grad if self.waits else self._unscale_(grad)

    def _unscale_(self, grad: Tensor) -> Tensor:
        """Divide by the scale of the loss, asked for once a step."""
        if self.scaler is None:
            return grad
        if self._inverse_scale is None:
            scale = self.scaler.get_scale()
            if scale == 0:
                raise UsageError("the loss scale fell to 0, after overflow in every step: lower the learning rate")
            self._inverse_scale = 1.0 / scale
        return grad.mul_(self._inverse_scale)

    def _drop(self, slot: Slot, error: NonFiniteGradient) -> None:
        """Keep a gradient out of everything; the step goes on as without it, so that all ranks come to its end."""
        self.non_finite = self.non_finite or error
        slot.dropped = True
        if self.streamed:
            slot.parameter.grad = None

    def _prepare(self, pending: Sequence[Slot]) -> None:
        """Unscale, check and clip the whole gradient of this rank."""
        norms = []
        for slot in pending:
            slot.check_seal()
            slot.version = None  # from here on the library itself changes it
            grad = self._unscale_(self._gradient(slot))
            try:
                check_finite(grad, slot.name)
                norms.append(torch.linalg.vector_norm(grad))
            except NonFiniteGradient as error:
                self._drop(slot, error)
        if self.max_norm is None or not norms:
            return
        _, factor = clip_factor(norms, self.max_norm)
        for slot in self._pending():
            slot.parameter.grad.mul_(factor.to(slot.parameter.device))  # type: ignore[union-attr]

    def _anywhere(self, here: bool) -> bool:
        """Whether `here` is true on any rank. No message is under way yet, so all ranks ask at the same place."""
        communicator = self.feedback.communicator
        count = torch.tensor([int(here)], device=communicator.control_device)
        return bool(communicator.all_reduce(count, "resireduce.overflow").wait())
