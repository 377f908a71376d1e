"""One step: gradients are taken and compressed, their messages go out, and the averages come back."""

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.nodes import Levels
from resireduce.core.bucket import WAS_DROPPED, Slot, Stage, clip_factor, separate
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.queue import LaunchQueue
from resireduce.core.update import Updater, largest_layer
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.guard import SECOND_BACKWARD
from resireduce.node import Scatter
from resireduce.settings import Settings
from resireduce.watchers import STEPS, ThisProcess, digest

WAS_THERE = (
    "the gradient of {name!r} was in .grad before backward(), put there by hand: a gradient that is streamed is sent "
    "as soon as it is made, and what is done to that memory later has no effect. Leave .grad empty (zero_grad() "
    "does), and put gradients there after backward(); or use gradients='kept'"
)
GATHERED = 16
"""Payloads of all ranks that are under way take at most 1 / GATHERED of the trained bytes, unless one takes more."""
TRAIN = "start all processes before, and call distribute() in each of those that train"


class Exchange:
    """Takes the gradients of a step, has them compressed and sent, receives the averages, and has parameters updated.

    With `update="in_backward"` it also has parameters updated during the backward pass.

    Args:
        optimizer: the wrapped optimizer.
        slots: one for each parameter.
        feedback: compresses and averages.
        settings: what `resireduce.distribute` was given.
        levels: the ranks, as one level or two.
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
        self._process = None if isinstance(levels.world, LocalCommunicator) else ThisProcess(TRAIN)
        self.slots, self.feedback = slots, feedback
        self.world_size = levels.world.world_size
        """The number of ranks."""
        limit = sum(slot.nbytes for slot in slots) // GATHERED
        remembers = settings.streamed and settings.scaler is not None
        self.queue = LaunchQueue(slots, feedback, limit, levels, remembers, settings.merge)
        self.updater = Updater(optimizer, slots, self.queue, settings)
        held = largest_layer(slots) if settings.streamed else sum(slot.nbytes for slot in slots)
        self.scatter = None if levels.node is None else Scatter(slots, levels.node, feedback, held)
        self.intake = Intake(slots, feedback, settings, levels.world)
        feedback.finiteness.at_once = False
        self.failed = False
        """Whether a step failed, so that ranks may have updated different parameters."""
        self.steps = 0
        """How many steps have been taken, without those that were skipped."""
        self.grad_scaler = settings.scaler
        self._others = [weakref.ref(other) for other in others]
        alone = self.world_size == 1 or settings.in_backward  # some are updated before the others are sent
        self._comparisons_left = 0 if alone else STEPS
        """In how many of the next steps parameters are compared between ranks."""

    def restart(self) -> None:
        """Forget the last step, and begin the next."""
        self.intake.restart()
        if self.scatter is not None:
            self.scatter.restart()
        self.updater.restart()
        self.feedback.begin_step(self.steps)

    def refuse_if_failed(self) -> None:
        """Raise UsageError if an earlier step failed, or this is a fork of the process that was to train."""
        if self._process is not None:
            self._process.refuse_fork()
        if self.failed:
            raise UsageError(
                "an earlier step failed, and ranks may have updated different parameters: build model and optimizer "
                "anew, on every rank, from a checkpoint"
            )

    def begin_backward(self) -> None:
        """Begin a backward pass: if averages are used within it, no guard of an earlier pass may be in `.grad`."""
        if self.updater.in_backward:
            for slot in self.intake.arrived:
                if slot.stage is Stage.GUARDED:
                    slot.uncover()

    def end_backward(self) -> None:
        """End a backward pass: guard all that has been taken."""
        if self.updater.in_backward:
            for slot in self.intake.arrived:
                slot.hide()

    def expect(self, slot: Slot) -> None:
        """Prepare for a gradient of `slot`, which autograd is about to add to `.grad`.

        Raises UsageError if another has been put there by hand, since that memory may be in use elsewhere.
        """
        if slot.passes or slot.stage is not Stage.OPEN:
            slot.expect_another_pass()
        elif slot.parameter.grad is not None:
            raise UsageError(WAS_THERE.format(name=slot.name))

    def gradient(self, slot: Slot, passes: int | None) -> None:
        """Take `slot`'s gradient, which autograd has finished.

        Raises UsageError if it was already under way. passes: number of backward passes, of which the last is sent and
        the others are held; None: this one is not the last.
        """
        if slot.is_over:
            raise UsageError(SECOND_BACKWARD.format(name=slot.name))
        slot.note_made()
        slot.passes += 1
        is_last = passes is not None and slot.passes >= passes
        if slot.stage is Stage.SPOILT:
            slot.parameter.grad = None
            if is_last:
                slot.stage = Stage.DROPPED
        elif is_last:
            slot.stage = Stage.LAST
            self.queue.prefetch_after(slot)
            self._take(slot)
            # Not early while gradients of earlier passes are in .grad: they would be taken for finished ones.
            if self.updater.in_backward and not self.intake.holds:
                self.updater.update_early(slot)
        else:
            self.intake.hold(slot)

    def _take(self, slot: Slot) -> None:
        """Take the gradient of `slot`, compress its bucket if it was the last to come, and launch what is ready.

        With two levels it goes through the node first.
        """
        self.intake.take(slot)
        if self.scatter is not None:
            for one, mean in self.scatter.advance(self.queue.buckets):
                self._take_slice(one, mean)
        elif slot.is_ready:
            self._compress(slot)
        self.queue.launch(self.steps)

    def _take_slice(self, slot: Slot, mean: Tensor | None) -> None:
        """With two levels: take this rank's slice of the `mean` over its node; None if no rank there has one."""
        if slot.elsewhere:
            self.intake.arrived.append(slot)
        slot.gradient, slot.is_ready = mean, True
        self._compress(slot)

    def _compress(self, slot: Slot) -> None:
        """Compress the bucket of `slot`, which has just come, if all its gradients have."""
        bucket = self.queue.bucket_of[slot]
        if bucket.is_ready:
            for one, error in self.queue.compress(bucket, self.steps).items():
                self.intake.leave_out(one, error)

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
        self.queue.launch(step, complete=True)
        self.feedback.end_step(step)  # after all rounds: the last updates a residual
        self.updater.finish(step, self.intake.is_spoilt, loss)
        self.queue.finish(self.intake.arrived)
        if self.queue.flagged:
            self._fail_or_put_back(step)
            self.steps = step
        else:
            self.feedback.states.commit()
            self._comparisons_left -= bool(self._comparisons_left)  # a step that was skipped has changed nothing
        self.failed = False
        return not self.queue.flagged

    def _send_rest(self) -> bool:
        """Compress the remaining gradients. False: the step was skipped for overflow, and nothing was sent."""
        self.failed = True  # if anything ends it half-way
        if not self.intake.streamed:
            separate(self.slots, [other for ref in self._others if (other := ref()) is not None])
        if not self.intake.prepare():
            self.updater.skip()
            self.failed = False
            return False
        for slot in self.intake.pending():
            self._take(slot)
        self._uncover()
        if self.scatter is not None:
            for slot, mean in self.scatter.complete(self.queue.buckets):
                self._take_slice(slot, mean)
                self.queue.launch(self.steps)
        return True

    def _uncover(self) -> None:
        """Make room for the averages."""
        for slot in self.slots:
            if slot.stage is Stage.GUARDED:
                slot.uncover()
            elif slot.is_guarded:  # not finite: nothing of it is under way
                slot.parameter.grad = None

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
        self.feedback.end_step(step + 1)  # another number: what was drawn for this step is drawn again


# --- The intake of gradients: the first half of a step, in which they arrive and are compressed ---


class Intake:
    """Takes gradients: as autograd finishes them in the backward pass or, of kept ones, all in `step()`.

    Args:
        slots: one for each parameter.
        feedback: compresses gradients.
        settings: what `resireduce.distribute` was given.
        world: all ranks.
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, settings: Settings, world: Communicator):
        self.slots, self.feedback, self.scaler, self.world = slots, feedback, settings.scaler, world
        self.hides = settings.streamed and not settings.in_backward
        """Whether a guard replaces `.grad` as soon as a gradient has been taken."""
        self.streamed = settings.streamed
        self.max_norm = settings.max_local_grad_norm
        self.restart()

    def restart(self) -> None:
        """Begin a step anew: no gradient has arrived, and none is known to be infinite."""
        self.arrived: list[Slot] = []
        self.holds = False  # whether an earlier pass of this step left gradients in .grad
        self.has_begun = False
        """Whether a gradient of this step has been compressed, absorbed or dropped."""
        self.non_finite: NonFiniteGradient | None = None
        """The error of the first gradient that was dropped."""
        self._inverse_scale: float | None = None
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
            grad = slot.own(grad, self.streamed)
        try:
            self.feedback.absorb(self._unscale_(grad), slot.name)
        except NonFiniteGradient as error:
            self._drop(slot, error, Stage.SPOILT)
            slot.parameter.grad = None
            return
        self.has_begun = True
        slot.stage = Stage.ABSORBED
        slot.hide()

    def take(self, slot: Slot) -> None:
        """Take `slot`'s gradient of this step, which waits for the rest of its bucket.

        With two levels it waits until the ranks of the node divide it.
        """
        slot.check_kind()
        try:
            if slot.is_guarded and slot.stage in (Stage.ABSORBED, Stage.LAST):
                slot.is_absorbed = True
            else:
                grad = self._gradient(slot)
                if slot.slices is not None:
                    self.feedback.finiteness.check_(grad, slot.name)
                slot.gradient = grad.contiguous()
        except NonFiniteGradient as error:
            self._drop(slot, error, Stage.DROPPED)
        else:
            self.has_begun = True
            slot.is_ready = slot.slices is None
            slot.stage = Stage.TAKEN
            self.arrived.append(slot)
        if self.hides:
            slot.hide()
        elif self.streamed:
            slot.parameter.grad = None

    def leave_out(self, slot: Slot, error: NonFiniteGradient) -> None:
        """Leave out the gradient of `slot`, which was not finite, as `error` says, when its bucket was compressed.

        With two levels it is the mean, if the sum of finite gradients has overflowed.
        """
        self.non_finite = self.non_finite or error
        if slot.slices is None:
            slot.stage = Stage.DROPPED
            self.arrived.remove(slot)

    def pending(self) -> list[Slot]:
        """Return the slots whose gradient, in `.grad` or absorbed, has not been taken: last of the model first.

        This includes gradients that were put there by hand.
        """
        waiting = (Stage.OPEN, Stage.ABSORBED)
        left = [slot for slot in reversed(self.slots) if slot.stage in waiting]
        return [slot for slot in left if (slot.passes and self.streamed) or slot.parameter.grad is not None]

    def prepare(self) -> bool:
        """If `step()` takes gradients, unscale and clip this rank's. False: the gradient of some rank overflowed."""
        if self.streamed or (self.max_norm is None and self.scaler is None):
            return True
        self._unscale_and_clip(self.pending())
        self._prepared = True
        if self.scaler is None:
            return True
        # No message is under way yet, so all ranks ask at the same point.
        count = torch.tensor([int(self.is_spoilt())], device=self.world.control_device)
        return not self.world.all_reduce(count, "resireduce.overflow").wait()

    def _gradient(self, slot: Slot) -> Tensor:
        """Return the gradient that has come in this step, unscaled."""
        grad = slot.parameter.grad
        if grad is None or slot.stage is Stage.ABSORBED:
            raise UsageError(WAS_DROPPED.format(name=slot.name))
        if grad.layout != torch.strided:
            raise UsageError(f"the gradient of {slot.name!r} is sparse: make its layer with sparse=False")
        return grad if self._prepared else self._unscale_(slot.own(grad, self.streamed))

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

    def _unscale_(self, grad: Tensor) -> Tensor:
        """Divide by the scale of the loss, in place; it is read once per step."""
        if self.scaler is None:
            return grad
        if self._inverse_scale is None:
            self._inverse_scale = self.scaler.inverse_scale()
        return grad.mul_(self._inverse_scale)

    def _drop(self, slot: Slot, error: NonFiniteGradient, stage: Stage) -> None:
        """Leave a gradient out; the step goes on without it, so that all ranks reach its end."""
        self.non_finite, self.has_begun = self.non_finite or error, True
        slot.stage = stage
