"""All gradients of one step, on their way out and back."""

import torch
from torch import Tensor

from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.intake import Intake, Scaler
from resireduce.launch import LaunchQueue
from resireduce.slot import Slot
from resireduce.streamed_away import SECOND_BACKWARD
from resireduce.update import Updater

LAY_BEFORE = (
    "the gradient of {name!r} was in .grad before backward(), put there by hand: a streamed gradient is sent as soon "
    "as it is made, and what is done to that memory later has no effect. Leave .grad empty (zero_grad() does), and put "
    "gradients there after backward(); or use gradients='kept'"
)


class Exchange:
    """Takes gradients in, launches their messages, receives the averages and has the parameters updated.

    Args:
        optimizer: the wrapped one.
        slots: one for each parameter.
        feedback: compresses and averages.
        streamed: whether gradients are freed once they are compressed.
        overlap: whether they are compressed during the backward pass.
        in_backward: whether the wrapped optimizer uses averages there, too.
        max_grad_norm, max_local_grad_norm, grad_scaler: as in `resireduce.distribute`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: list[Slot],
        feedback: ErrorFeedback,
        *,
        streamed: bool,
        overlap: bool,
        in_backward: bool,
        max_grad_norm: float | None,
        max_local_grad_norm: float | None,
        grad_scaler: Scaler | None,
    ):
        self.slots, self.feedback, self.grad_scaler = slots, feedback, grad_scaler
        self.queue = LaunchQueue(slots, feedback, sum(slot.nbytes for slot in slots) // 16)
        self.hides = overlap and not in_backward
        """Whether a guard stands in `.grad` as soon as a gradient has been taken."""
        self.intake = Intake(
            slots, feedback, streamed=streamed, overlap=overlap, hides=self.hides, max_norm=max_local_grad_norm,
            scaler=grad_scaler,
        )  # fmt: skip
        self.updater = Updater(
            optimizer, slots, self.queue, streamed=streamed, in_backward=in_backward,
            waits=streamed and grad_scaler is not None, max_grad_norm=max_grad_norm,
        )  # fmt: skip
        self._lay_before: dict[Slot, Tensor] = {}
        """Streamed: gradients that were there before the backward pass, of those that it had not reached then."""
        self.failed = False
        """Whether a step failed, so that ranks may have updated different parameters."""

    def restart(self) -> None:
        """Forget the last step."""
        self._lay_before = {}
        self.intake.restart()
        self.updater.restart()
        self.feedback.begin_step()

    def refuse_if_failed(self) -> None:
        """Raise UsageError if an earlier step failed."""
        if self.failed:
            raise UsageError(
                "an earlier step failed, and ranks may have updated different parameters: build model and optimizer "
                "anew, on every rank, from a checkpoint"
            )

    def begin_backward(self, first: Slot) -> None:
        """A backward pass begins, and has made the gradient of `first`.

        If averages are used within it, no guard may stand in `.grad` of an earlier one.
        Streamed: a gradient that lies in `.grad` already was put there, and somebody may mean to use that memory.
        """
        if self.intake.streamed:
            others = (slot for slot in self.slots if not slot.passes and not slot.guarded and slot is not first)
            self._lay_before = {slot: slot.parameter.grad for slot in others if slot.parameter.grad is not None}
        if self.updater.in_backward:
            for slot in self.intake.arrived:
                if slot.guarded:
                    slot.uncover()

    def end_backward(self) -> None:
        """A backward pass has come to its end: all that has been taken is guarded."""
        self._lay_before = {}
        if self.updater.in_backward:
            for slot in self.intake.arrived:
                slot.hide()

    def gradient(self, slot: Slot, step: int, passes: int | None) -> None:
        """Autograd has finished with `slot`'s gradient of this `step`.

        Raises UsageError if that was under way already. passes: the last of so many backward passes is to be sent, and
        others held; None: this one is not the last.
        """
        if slot in self._lay_before and self._lay_before[slot] is slot.parameter.grad:
            raise UsageError(LAY_BEFORE.format(name=slot.name))
        if slot.complete:
            raise UsageError(SECOND_BACKWARD.format(name=slot.name))
        slot.note_made()
        slot.passes += 1
        slot.complete = passes is not None and slot.passes >= passes
        if slot.dropped:
            slot.parameter.grad = None
        elif not slot.complete:
            self.intake.hold(slot)
        else:
            self._send(slot, step)

    def _send(self, slot: Slot, step: int) -> None:
        """Compress a gradient that is complete, and launch what is ready."""
        self.queue.prefetch_after(slot)
        self.intake.take(slot, step)
        self.queue.launch(step)
        # Not early while gradients of earlier passes are in .grad: they would be taken for finished ones.
        if self.updater.in_backward and not self.intake.holds:
            self.updater.update_early(slot)

    def finish(self, step: int, loss: Tensor | float | None) -> bool:
        """Compress what has not been, launch the rest, receive, and update. False: the step was skipped for overflow.

        loss: what a closure returned, if there was one. Raises NonFiniteGradient on all ranks, if a gradient of one is
        not finite and there is no GradScaler.
        """
        self.failed = True  # whatever ends it half-way
        if not self.intake.prepare():
            self.updater.skip()
            self.failed = False
            return False
        for slot in self.intake.pending():
            self.intake.take(slot, step)
            self.queue.launch(step)
        self._uncover()
        error = self.intake.non_finite
        self.feedback.residual.end_step()
        self.queue.launch(step, complete=True)
        self.updater.finish(step, error is not None, loss)
        self.queue.finish(self.intake.arrived)
        if self.queue.flagged:
            self._fail_or_put_back(step, error)
        self.failed = False
        return not self.queue.flagged

    def _uncover(self) -> None:
        """Make room for the averages."""
        for slot in self.slots:
            if slot.present and slot.guarded:
                slot.uncover()
            elif slot.is_guarded:  # not finite: nothing of it is under way
                slot.parameter.grad = None

    def _fail_or_put_back(self, step: int, error: NonFiniteGradient | None) -> None:
        """Some rank's gradient was not finite. What was sent of the others goes back, if the step can be skipped."""
        if self.grad_scaler is None:
            raise error or NonFiniteGradient("a gradient of another rank holds NaN or infinity; that rank says which")
        self.updater.skip()
        for slot in self.intake.arrived:
            if slot.sent is not None:
                self.feedback.put_back(slot.sent, slot.name)
        self.feedback.residual.end_step()
        self.feedback.residual.start_at(step)  # the step is taken again, with the same random choices
