"""The exchange of one step: gradients go out, and their averages come back."""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient
from resireduce.settings import Settings
from resireduce.step.drift import STEPS, digest
from resireduce.step.outdated import QUIET
from resireduce.step.outgoing import Outgoing
from resireduce.step.own_memory import separate
from resireduce.step.slot import Slot
from resireduce.step.stage import Stage


class Exchange(Outgoing):
    """Takes a step: sends what the backward pass has not sent, receives the averages, and has parameters updated.

    Args:
        optimizer, slots, feedback, settings, levels: as for `Outgoing`.
        others: parameters of the model that others update; they are held weakly.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: list[Slot],
        feedback: ErrorFeedback,
        settings: Settings,
        levels: Levels,
        others: Iterable[Tensor],
    ):
        super().__init__(optimizer, slots, feedback, settings, levels)
        self.grad_scaler = settings.scaler
        self._others = [weakref.ref(other) for other in others]
        alone = self.world_size == 1 or settings.in_backward  # some are updated before the others are sent
        self._comparisons_left = 0 if alone else STEPS
        """In how many of the next steps parameters are compared between ranks."""

    def take_step(self, loss: Tensor | float | None) -> bool:
        """Send what has not been sent, receive, and update. False: the step was skipped for overflow.

        loss: what a closure returned, if there was one. Raises NonFiniteGradient on all ranks if a gradient on any of
        them is not finite and there is no GradScaler.
        """
        step = self.steps
        self.queue.digest = digest(slot.parameter for slot in self.slots) if self._comparisons_left else 0
        if not self._send_rest():
            return False
        self.steps = step + 1  # hooks of the wrapped optimizer find this step counted
        taken = self._finish(step, loss)
        if not taken:
            self.steps = step
        if taken and self._comparisons_left:  # a step that was skipped has changed nothing
            self._comparisons_left -= 1
        return taken

    def _send_rest(self) -> bool:
        """Compress the remaining gradients. False: the step was skipped for overflow, and nothing was sent."""
        self.failed = True  # if anything ends it half-way
        if not self.intake.overlap:
            self._separate()
        if not self.intake.prepare():
            self.updater.skip()
            self.failed = False
            return False
        for slot in self.intake.pending():
            self._take(slot)
        self._uncover()
        if self._scatter is not None:
            for slot, mean in self._scatter.complete(self.queue.buckets):
                self._take_slice(slot, mean)
                self.queue.launch(self.steps)
        return True

    def _separate(self) -> None:
        """Before kept gradients become averages: give them memory that no other gradient shares."""
        with QUIET():  # another optimizer with merge="dear" need not update what only its gradient is asked for
            separate(self.slots, [other for ref in self._others if (other := ref()) is not None])

    def _finish(self, step: int, loss: Tensor | float | None) -> bool:
        """After `_send_rest`: launch the remaining messages of `step`, receive, and update."""
        self.queue.launch(step, complete=True)
        self.feedback.residual.end_step(step)  # after all rounds: the last updates a residual
        self.updater.finish(step, self.intake.is_spoilt, loss)
        self.queue.finish(self.intake.arrived)
        if self.queue.flagged:
            self._fail_or_put_back(step)
        else:
            self.feedback.states.commit()
            if self.intake.overlap and not self.intake.streamed and self.before_forward is None:
                for slot in self.slots:
                    slot.note_left()
            self._choose_messages(step)
        self.failed = False
        return not self.queue.flagged

    def _choose_messages(self, step: int) -> None:
        """After `step`: merge by the measured costs, once they are known."""
        messages = self.profiler.end_step(step, self.queue.compressed)
        if messages is not None:
            self.queue.merge(messages)

    def _uncover(self) -> None:
        """Make room for the averages."""
        for slot in self.slots:
            if slot.stage is Stage.GUARDED:
                slot.uncover()
            elif slot.is_guarded:  # not finite: nothing of it is under way
                slot.parameter.grad = None
        if self.intake.overlap and not self.intake.streamed:
            self._separate()

    def _fail_or_put_back(self, step: int) -> None:
        """Put back what was sent, if a step can be skipped for a gradient that is not finite; otherwise raise."""
        if self.grad_scaler is None:
            raise self.intake.non_finite or NonFiniteGradient(
                "a gradient of another rank holds NaN or infinity; that rank says which"
            )
        self.updater.skip()
        for slot in self.intake.arrived:
            if slot.sent is not None:
                self.feedback.put_back(slot.sent, slot.name, step + 1)
        self.feedback.residual.end_step(step + 1)  # another number: what was drawn for this step is drawn again
