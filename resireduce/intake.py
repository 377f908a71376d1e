"""The first half of a step: gradients arrive, and are compressed."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from resireduce.clip import clip_factor
from resireduce.error_feedback import ErrorFeedback, check_finite
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.slot import DROPPED, Slot


class Scaler(Protocol):
    """What scales the loss, as `resireduce.GradScaler`."""

    def inverse_scale(self) -> float:
        """Return what gradients of this step are multiplied by."""


class Intake:
    """Takes gradients: as autograd finishes them where they overlap with the backward pass, else all in `step()`.

    Args:
        slots: one for each parameter.
        feedback: compresses them.
        streamed: whether gradients are freed once they are compressed.
        overlap: whether they are compressed during the backward pass.
        hides: whether a guard stands in `.grad` from then on.
        max_norm: without overlap: the whole gradient of this rank is scaled so that its norm is this at most.
        scaler: whose scale gradients are divided by before anything else is done with them.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        feedback: ErrorFeedback,
        *,
        streamed: bool,
        overlap: bool,
        hides: bool,
        max_norm: float | None = None,
        scaler: Scaler | None = None,
    ):
        self.slots, self.feedback, self.streamed, self.overlap, self.hides = slots, feedback, streamed, overlap, hides
        self.max_norm, self.scaler = max_norm, scaler
        self.restart()

    def restart(self) -> None:
        """Forget the last step."""
        self.arrived: list[Slot] = []
        self.holds = False  # whether an earlier pass of this step left gradients in .grad
        self.non_finite: NonFiniteGradient | None = None
        self._inverse_scale: float | None = None
        self._prepared = False  # whether this rank's whole gradient has been unscaled and clipped
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
        slot.check_kind()
        try:
            self.feedback.absorb(self._unscale_(grad), slot.name)
            slot.absorbed = True
        except NonFiniteGradient as error:
            self._drop(slot, error)
            slot.parameter.grad = None
            return
        slot.hide()

    def take(self, slot: Slot, step: int) -> None:
        """Compress `slot`'s gradient of this `step`; streamed, its payload is all that is left of it."""
        slot.check_kind()
        grad = self._gradient(slot)
        try:
            slot.payload = self.feedback.compress(grad.contiguous(), slot.name, step)
        except NonFiniteGradient as error:
            self._drop(slot, error)
        else:
            slot.present = True
            self.arrived.append(slot)
        if self.streamed and self.scaler is not None and self.feedback.leaves_residual(slot.name):
            slot.remember_sent(self.feedback.gathers(slot.name))
        if self.hides:
            slot.hide(keep=not self.streamed)
        elif self.streamed:
            slot.parameter.grad = None

    def pending(self) -> list[Slot]:
        """Those whose gradient lies in `.grad`, or is absorbed, and has not been taken: the last of the model first.

        Gradients that were put there by hand are among them.
        """
        return [slot for slot in reversed(self.slots) if not slot.present and not slot.dropped and self._has(slot)]

    def _has(self, slot: Slot) -> bool:
        return (slot.passes > 0 and self.overlap) or slot.parameter.grad is not None

    def prepare(self) -> bool:
        """Without overlap: unscale and clip the whole gradient of this rank. False: that of some rank overflowed."""
        if self.overlap or (self.max_norm is None and self.scaler is None):
            return True
        self._unscale_and_clip(self.pending())
        self._prepared = True
        return self.scaler is None or not self._anywhere(self.non_finite is not None)

    def _gradient(self, slot: Slot) -> Tensor:
        """What has come of a tensor in this step, but for what is absorbed already; unscaled."""
        grad = slot.parameter.grad
        if slot.absorbed and slot.is_guarded:
            return torch.zeros_like(slot.parameter)
        if grad is None or (slot.absorbed and not slot.complete):
            raise UsageError(DROPPED.format(name=slot.name))
        if grad.layout != torch.strided:
            raise UsageError(f"the gradient of {slot.name!r} is sparse: make its layer with sparse=False")
        return grad if self._prepared else self._unscale_(slot.own(grad))

    def _unscale_(self, grad: Tensor) -> Tensor:
        """Divide by the scale of the loss, asked for once a step."""
        if self.scaler is None:
            return grad
        if self._inverse_scale is None:
            self._inverse_scale = self.scaler.inverse_scale()
        return grad.mul_(self._inverse_scale)

    def _drop(self, slot: Slot, error: NonFiniteGradient) -> None:
        """Keep a gradient out of everything; the step goes on as without it, so that all ranks come to its end."""
        self.non_finite = self.non_finite or error
        slot.dropped = True

    def _unscale_and_clip(self, pending: Sequence[Slot]) -> None:
        norms = {}
        for slot in pending:
            grad = self._gradient(slot)
            try:
                check_finite(grad, slot.name)
                norms[slot] = torch.linalg.vector_norm(grad)
            except NonFiniteGradient as error:
                self._drop(slot, error)
        if self.max_norm is None or not norms:
            return
        _, factor = clip_factor(list(reversed(norms.values())), self.max_norm)
        for slot in norms:
            slot.parameter.grad.mul_(factor.to(slot.parameter.device))  # type: ignore[union-attr]

    def _anywhere(self, here: bool) -> bool:
        """Whether `here` is true on any rank. No message is under way yet, so all ranks ask at the same place."""
        communicator = self.feedback.communicator
        count = torch.tensor([int(here)], device=communicator.control_device)
        return bool(communicator.all_reduce(count, "resireduce.overflow").wait())
