"""The intake of gradients: the first half of a step, in which they arrive and are compressed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.messages import Round
from resireduce.payload import Payload
from resireduce.settings import Settings
from resireduce.step.gradients import clip_factor
from resireduce.step.slot import DROPPED, Slot, Stage


class Intake:
    """Takes gradients: with overlap as autograd finishes them in the backward pass, otherwise all in `step()`.

    Args:
        slots: one for each parameter.
        feedback: compresses gradients.
        settings: what `resireduce.distribute` was given.
        hides: whether a guard replaces `.grad` once a gradient has been taken.
        world: all ranks.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        feedback: ErrorFeedback,
        settings: Settings,
        hides: bool,
        world: Communicator,
    ):
        self.slots, self.feedback, self.scaler = slots, feedback, settings.scaler
        self.has_begun = False
        """Whether a gradient of this step has been compressed, absorbed or dropped."""
        self.non_finite: NonFiniteGradient | None = None
        """The error of the first gradient that was dropped."""
        self._inverse_scale: float | None = None
        self.hides, self.world = hides, world
        self.streamed, self.overlap = settings.streamed, settings.overlaps
        self.max_norm = settings.max_local_grad_norm
        self.restart()

    def restart(self) -> None:
        """Begin a step anew: no gradient has arrived, and none is known to be infinite."""
        self.arrived: list[Slot] = []
        self.holds = False  # whether an earlier pass of this step left gradients in .grad
        self.has_begun, self.non_finite, self._inverse_scale = False, None, None
        self._prepared = False  # whether this rank's whole gradient has been unscaled and clipped
        self.feedback.finiteness.restart()
        for slot in self.slots:
            slot.restart()

    def has_gone(self, slot: Slot) -> bool:
        """Whether autograd has left no gradient: the parameter of `slot` was frozen after the forward pass, or a hook
        of somebody has dropped it. What the residual has absorbed of earlier passes stays there."""
        if slot.parameter.grad is not None:
            return False
        if slot.stage is Stage.ABSORBED and not slot.parameter.requires_grad:
            slot.hide()
            return True
        return slot.stage is Stage.OPEN

    def is_spoilt(self) -> bool:
        """Whether a gradient of this rank was not finite: this reads back what has only been noted on devices."""
        self.non_finite = self.non_finite or self.feedback.finiteness.failure()
        return self.non_finite is not None

    def hold(self, slot: Slot) -> None:
        """Have the residual absorb the gradient of `slot` from a pass before the last, or leave it in `.grad`."""
        grad = slot.parameter.grad
        absorbs = self.streamed and slot.slices is None and self.feedback.absorbs(slot.name)
        if not absorbs or grad is None or grad.layout != torch.strided:
            self.holds = True
            return
        slot.check_kind()
        if self.scaler is not None:
            grad = slot.own(grad, self.overlap)
        try:
            self.feedback.absorb(self._unscale_(grad), slot.name)
        except NonFiniteGradient as error:
            self._drop(slot, error, Stage.SPOILT)
            slot.parameter.grad = None
            return
        self.has_begun = True
        slot.go(Stage.ABSORBED)
        slot.hide()

    def take(self, slot: Slot, step: int) -> None:
        """Compress `slot`'s gradient of this `step`; if it is streamed, only its payload remains.

        With two levels it is held until the ranks of the node divide it.
        """
        slot.check_kind()
        try:
            if slot.slices is None:
                slot.payload = self._payload(slot, step)
            else:
                grad = self._gradient(slot)
                self.feedback.finiteness.check_(grad, slot.name)
                slot.whole = grad.contiguous()
        except NonFiniteGradient as error:
            self._drop(slot, error, Stage.DROPPED)
        else:
            self.has_begun = True
            slot.go(Stage.TAKEN)
            self.arrived.append(slot)
        if self.hides:
            slot.hide(keep=not self.streamed)
        elif self.streamed:
            slot.parameter.grad = None

    def take_slice(self, slot: Slot, mean: Tensor | None, step: int) -> None:
        """Compress this rank's slice of the `mean` of `slot`'s gradients over its node; None: no rank there has one.

        If the sum of finite gradients overflowed, it is kept out like a gradient that is not finite.
        """
        if slot.elsewhere:
            self.arrived.append(slot)
        try:
            if mean is not None:
                slot.payload = self.feedback.compress(mean, slot.name, step)
                return
        except NonFiniteGradient as error:
            self.non_finite = self.non_finite or error
        slot.payload = self.feedback.absent(slot.template, slot.name, step)

    def _payload(self, slot: Slot, step: int) -> Payload | Round:
        if slot.is_guarded and slot.stage in (Stage.ABSORBED, Stage.LAST):
            return self.feedback.compress_absorbed(slot.name, step)
        return self.feedback.compress(self._gradient(slot).contiguous(), slot.name, step)

    def pending(self) -> list[Slot]:
        """Return the slots whose gradient, in `.grad` or absorbed, has not been taken: last of the model first.

        This includes gradients that were put there by hand.
        """
        waiting = (Stage.OPEN, Stage.ABSORBED)
        return [slot for slot in reversed(self.slots) if slot.stage in waiting and self._has(slot)]

    def _has(self, slot: Slot) -> bool:
        return (slot.passes > 0 and self.overlap) or slot.parameter.grad is not None

    def prepare(self) -> bool:
        """Without overlap, unscale and clip this rank's whole gradient. False: the gradient of some rank overflowed."""
        if self.overlap or (self.max_norm is None and self.scaler is None):
            return True
        self._unscale_and_clip(self.pending())
        self._prepared = True
        return self.scaler is None or not self._anywhere(self.is_spoilt())

    def _gradient(self, slot: Slot) -> Tensor:
        """Return the gradient that has come in this step, unscaled."""
        grad = slot.parameter.grad
        if grad is None or slot.stage is Stage.ABSORBED:
            raise UsageError(DROPPED.format(name=slot.name))
        if grad.layout != torch.strided:
            raise UsageError(f"the gradient of {slot.name!r} is sparse: make its layer with sparse=False")
        return grad if self._prepared else self._unscale_(slot.own(grad, self.overlap))

    def _unscale_and_clip(self, pending: Sequence[Slot]) -> None:
        norms = {}
        for slot in pending:
            grad = self._gradient(slot)
            try:
                self.feedback.finiteness.check_(grad, slot.name)
                norms[slot] = torch.linalg.vector_norm(grad)
            except NonFiniteGradient as error:
                self._drop(slot, error, Stage.DROPPED)
        if self.max_norm is None or not norms:
            return
        _, factor = clip_factor(list(reversed(norms.values())), self.max_norm)
        for slot in norms:
            slot.parameter.grad.mul_(factor.to(slot.parameter.device))  # type: ignore[union-attr]

    def _anywhere(self, here: bool) -> bool:
        """Whether `here` is true on any rank. No message is under way yet, so all ranks ask at the same point."""
        count = torch.tensor([int(here)], device=self.world.control_device)
        return bool(self.world.all_reduce(count, "resireduce.overflow").wait())

    def _unscale_(self, grad: Tensor) -> Tensor:
        """Divide by the scale of the loss, in place."""
        return grad if self.scaler is None else grad.mul_(self._inverse())

    def _inverse(self) -> float:
        """Return the factor that undoes the scale of the loss, which is read once per step."""
        if self._inverse_scale is None:
            self._inverse_scale = 1.0 if self.scaler is None else self.scaler.inverse_scale()
        return self._inverse_scale

    def _drop(self, slot: Slot, error: NonFiniteGradient, stage: Stage) -> None:
        """Leave a gradient out; the step goes on without it, so that all ranks reach its end."""
        self.non_finite, self.has_begun = self.non_finite or error, True
        slot.go(stage)
