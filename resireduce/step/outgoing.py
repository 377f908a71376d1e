"""The first half of an exchange: gradients are taken in the backward pass, compressed, and their messages launched."""

import torch
from torch import Tensor

from resireduce.comm.levels import Levels
from resireduce.comm.local import LocalCommunicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import UsageError
from resireduce.forked import ThisProcess
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

WAS_THERE = (
    "the gradient of {name!r} was in .grad before backward(), put there by hand: a gradient that is streamed, or kept "
    "with overlap=True, is sent as soon as it is made, and what is done to that memory later has no effect. Leave "
    ".grad empty (zero_grad() does), and put gradients there after backward(); or use gradients='kept' (without "
    "overlap=True)"
)
TRAIN = "start all processes before, and call distribute() in each of those that train"


class Outgoing:
    """Takes the gradients of a step, has them compressed, and launches their messages.

    With `update="in_backward"` it also has parameters updated during the backward pass.

    Args:
        optimizer: the wrapped optimizer.
        slots: one for each parameter.
        feedback: compresses and averages.
        settings: what `resireduce.distribute` was given.
        levels: the ranks, as one level or two.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: list[Slot],
        feedback: ErrorFeedback,
        settings: Settings,
        levels: Levels,
    ):
        self._process = None if isinstance(levels.world, LocalCommunicator) else ThisProcess(TRAIN)
        self.slots, self.feedback = slots, feedback
        self.world_size = levels.world.world_size
        """The number of ranks."""
        self.before_forward = BeforeForward() if settings.in_halves else None
        """If averages come in the next forward pass: the hook before each module."""
        self.queue, self.updater = self._queue_and_updater(optimizer, settings, levels)
        rule = settings.merge if isinstance(settings.merge, str) and settings.merge in TIMED else None
        self.profiler = Profiler(rule, feedback, levels.world)
        held = largest_layer(slots) if settings.streamed else sum(slot.nbytes for slot in slots)
        self._scatter = None if levels.node is None else Scatter(slots, levels.node, feedback, held)
        self.hides = settings.overlaps and not settings.in_backward
        """Whether a guard replaces `.grad` as soon as a gradient has been taken."""
        self.intake = Intake(slots, feedback, settings, self.hides, levels.world, self.updater.sizes)
        feedback.finiteness.at_once = False
        self.failed = False
        """Whether a step failed, so that ranks may have updated different parameters."""
        self.steps = 0
        """How many steps have been taken, without those that were skipped."""

    def _queue_and_updater(
        self, optimizer: torch.optim.Optimizer, settings: Settings, levels: Levels
    ) -> tuple[LaunchQueue, Updater]:
        """Return the queue of messages, and the updater of parameters by the averages that come back."""
        slots, feedback = self.slots, self.feedback
        if self.before_forward is not None:
            halves = HalvesQueue(slots, feedback, levels, settings.merge)
            return halves, LateUpdater(optimizer, slots, halves, settings, self.before_forward)
        limit, parts = gathered_at_once(settings, slots)
        remembers = settings.streamed and settings.scaler is not None
        queue = LaunchQueue(slots, feedback, limit, levels, remembers, settings.merge, parts)
        feedback.checked_packed = frozenset(slot.name for one in queue.buckets if one[1:] for slot in one)
        return queue, Updater(optimizer, slots, queue, settings)

    def restart(self) -> None:
        """Forget the last step, and begin the next."""
        self.profiler.restart()
        self.intake.restart()
        if self._scatter is not None:
            self._scatter.restart()
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
        elif slot.parameter.grad is not None and not slot.has_left(slot.parameter.grad):
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
                slot.go(Stage.DROPPED)
        elif is_last:
            slot.go(Stage.LAST)
            self._send(slot)
        else:
            self.intake.hold(slot)
        slot.by_rows = False

    def _send(self, slot: Slot) -> None:
        """Compress the gradient of `slot`, which is complete, and launch what is ready."""
        self.queue.prefetch_after(slot)
        self._take(slot)
        # Not early while gradients of earlier passes are in .grad: they would be taken for finished ones.
        if self.updater.in_backward and not self.intake.holds:
            self.updater.update_early(slot)

    def _take(self, slot: Slot) -> None:
        """Compress the gradient of `slot`, and launch what is ready: with two levels first within the node."""
        with self.profiler.timing(slot):
            self.intake.take(slot, self.steps)
        if self._scatter is not None:
            for one, mean in self._scatter.advance(self.queue.buckets):
                self._take_slice(one, mean)
        self.queue.launch(self.steps)

    def _take_slice(self, slot: Slot, mean: Tensor | None) -> None:
        """With two levels: compress this rank's slice of the `mean` over its node; None if no rank there has one."""
        with self.profiler.timing(slot):
            self.intake.take_slice(slot, mean, self.steps)
