"""The exchange of one step: all gradients on their way out, and their averages on their way back."""

import torch
from torch import Tensor

from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.merging.costs import TIMED
from resireduce.settings import Settings
from resireduce.step.apply import largest_layer
from resireduce.step.halves import HalvesQueue
from resireduce.step.intake import Intake
from resireduce.step.late_update import LateUpdater
from resireduce.step.launch import LaunchQueue
from resireduce.step.outdated import BeforeForward
from resireduce.step.profile import Profiler
from resireduce.step.scatter import Scatter
from resireduce.step.slicing import gathered_at_once
from resireduce.step.slot import Slot
from resireduce.step.stage import Stage
from resireduce.step.update import Updater
from resireduce.streamed_away import SECOND_BACKWARD

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
        settings: what `resireduce.distribute` was given.
        levels: the ranks.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: list[Slot],
        feedback: ErrorFeedback,
        settings: Settings,
        levels: Levels,
    ):
        self.slots, self.feedback, self.grad_scaler = slots, feedback, settings.scaler
        limit, parts = gathered_at_once(settings, slots)
        remembers = settings.streamed and settings.scaler is not None
        self.queue: LaunchQueue
        self.updater: Updater
        self.before_forward = BeforeForward() if settings.in_halves else None
        """Where averages come in the next forward pass: what is called before each module of that."""
        if self.before_forward is not None:
            self.queue = halves = HalvesQueue(slots, feedback, levels, settings.merge)
            self.updater = LateUpdater(optimizer, slots, halves, settings, self.before_forward)
        else:
            self.queue = LaunchQueue(slots, feedback, limit, levels, remembers, settings.merge, parts)
            self.updater = Updater(optimizer, slots, self.queue, settings)
        rule = settings.merge if isinstance(settings.merge, str) and settings.merge in TIMED else None
        self.profiler = Profiler(rule, feedback, levels.world)
        held = largest_layer(slots) if settings.streamed else sum(slot.nbytes for slot in slots)
        self._scatter = None if levels.node is None else Scatter(slots, levels.node, feedback, held)
        self.hides = settings.overlaps and not settings.in_backward
        """Whether a guard stands in `.grad` as soon as a gradient has been taken."""
        self.intake = Intake(slots, feedback, settings, self.hides, levels.world, self.updater.sizes)
        feedback.finiteness.at_once = False
        self._lay_before: dict[Slot, Tensor] = {}
        """Streamed: gradients that were there before the backward pass, of those that it had not reached then."""
        self.failed = False
        """Whether a step failed, so that ranks may have updated different parameters."""
        self.steps = 0
        """How many steps have been taken, without those that were skipped."""

    def restart(self) -> None:
        """Forget the last step, and begin the next."""
        self._lay_before = {}
        self.profiler.restart()
        self.intake.restart()
        if self._scatter is not None:
            self._scatter.restart()
        self.updater.restart()
        self.feedback.begin_step(self.steps)

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
            others = (slot for slot in self.slots if not slot.passes and slot is not first)
            self._lay_before = {slot: slot.parameter.grad for slot in others if slot.parameter.grad is not None}
        if self.updater.in_backward:
            for slot in self.intake.arrived:
                if slot.stage is Stage.GUARDED:
                    slot.uncover()

    def end_backward(self) -> None:
        """End a backward pass: guard all that has been taken."""
        self._lay_before = {}
        if self.updater.in_backward:
            for slot in self.intake.arrived:
                slot.hide()

    def gradient(self, slot: Slot, passes: int | None) -> None:
        """Autograd has finished with `slot`'s gradient.

        Raises UsageError if that was under way already. passes: the last of so many backward passes is to be sent, and
        others held; None: this one is not the last.
        """
        if slot in self._lay_before and self._lay_before[slot] is slot.parameter.grad:
            raise UsageError(LAY_BEFORE.format(name=slot.name))
        if slot.is_over:
            raise UsageError(SECOND_BACKWARD.format(name=slot.name))
        slot.note_made()
        slot.passes += 1
        is_last = passes is not None and slot.passes >= passes
        if slot.stage is Stage.SPOILT:
            slot.parameter.grad = None
            if is_last:
                slot.go(Stage.DROPPED)
        elif is_last:
            slot.go(Stage.LAST)
            self._send(slot)
        else:
            self.intake.hold(slot)
        slot.by_rows = False

    def _send(self, slot: Slot) -> None:
        """Compress a gradient that is complete, and launch what is ready."""
        self.queue.prefetch_after(slot)
        with self.profiler.timing(slot):
            self.intake.take(slot, self.steps)
        self._launch()
        # Not early while gradients of earlier passes are in .grad: they would be taken for finished ones.
        if self.updater.in_backward and not self.intake.holds:
            self.updater.update_early(slot)

    def _launch(self) -> None:
        """Launch what is ready: within the node first, if there are two levels, and what has come there beyond it."""
        if self._scatter is not None:
            for slot, mean in self._scatter.advance(self.queue.buckets):
                with self.profiler.timing(slot):
                    self.intake.take_slice(slot, mean, self.steps)
        self.queue.launch(self.steps)

    def take_step(self, loss: Tensor | float | None) -> bool:
        """Send what has not been, receive, and update. False: the step was skipped for overflow.

        loss: what a closure returned, if there was one. Raises NonFiniteGradient on all ranks, if a gradient of one is
        not finite and there is no GradScaler.
        """
        step = self.steps
        if not self._send_rest():
            return False
        self.steps = step + 1  # hooks of the wrapped optimizer find this step counted
        taken = self._finish(step, loss)
        if not taken:
            self.steps = step
        return taken

    def _send_rest(self) -> bool:
        """Compress the gradients that have not been. False: the step was skipped for overflow, and nothing was sent."""
        self.failed = True  # whatever ends it half-way
        if not self.intake.prepare():
            self.updater.skip()
            self.failed = False
            return False
        for slot in self.intake.pending():
            with self.profiler.timing(slot):
                self.intake.take(slot, self.steps)
            self._launch()
        self._uncover()
        if self._scatter is not None:
            for slot, mean in self._scatter.complete(self.queue.buckets):
                with self.profiler.timing(slot):
                    self.intake.take_slice(slot, mean, self.steps)
                self.queue.launch(self.steps)
        return True

    def _finish(self, step: int, loss: Tensor | float | None) -> bool:
        """After `_send_rest`: launch all that is left of `step`, receive, and update."""
        self.queue.launch(step, complete=True)
        self.feedback.residual.end_step(step)  # after all rounds: the last updates a residual
        self.updater.finish(step, self.intake.is_spoilt, loss)
        self.queue.finish(self.intake.arrived)
        if self.queue.flagged:
            self._fail_or_put_back(step)
        else:
            self.feedback.states.commit()
            self._choose_messages(step)
        self.failed = False
        return not self.queue.flagged

    def _choose_messages(self, step: int) -> None:
        """After `step`: merge by the costs that were timed, once they are known."""
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

    def _fail_or_put_back(self, step: int) -> None:
        """Put back what was sent, if a step can be skipped for a gradient that is not finite; else raise."""
        if self.grad_scaler is None:
            raise self.intake.non_finite or NonFiniteGradient(
                "a gradient of another rank holds NaN or infinity; that rank says which"
            )
        self.updater.skip()
        for slot in self.intake.arrived:
            if slot.sent is not None:
                self.feedback.put_back(slot.sent, slot.name, step + 1)
        self.feedback.residual.end_step(step + 1)  # another number: what was drawn for this step is drawn again
