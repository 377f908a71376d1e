"""One step: gradients are taken and compressed, their messages go out, and the averages come back."""

import os
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from resireduce.comm.local import LocalCommunicator
from resireduce.comm.nodes import Levels
from resireduce.core.bucket import (
    HERE,
    Bucket,
    Slot,
    Stage,
    arrange,
    clip_factor,
    in_buckets,
    laid_out,
    scale_,
    separate,
)
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Round
from resireduce.core.update import Updater
from resireduce.errors import NonFiniteGradient, UsageError, warn
from resireduce.guard import SECOND_BACKWARD
from resireduce.merging.rules import Costs
from resireduce.node import Gather, Scatter
from resireduce.settings import Settings
from resireduce.watchers import DRIFTED, STEPS, digest, refuse_fork

WAS_THERE = (
    "the gradient of {name!r} was in .grad before backward(), put there by hand: a gradient that is streamed is sent "
    "as soon as it is made, and what is done to that memory later has no effect. Leave .grad empty (zero_grad() "
    "does), and put gradients there after backward(); or use gradients='kept'"
)
WAS_DROPPED = (
    "the gradient of {name!r} was dropped between two backward passes of one step, or replaced when some of it was in "
    "the residual already: call zero_grad() only before the first pass, and change gradients only after the last"
)


class Exchange:
    """Takes the gradients of a step, has them compressed and sent, receives the averages, and has parameters updated.

    Streamed gradients are taken as autograd finishes them in the backward pass, kept ones all in `step()`. With
    `update="in_backward"` parameters are updated during the backward pass, too. `others` are parameters of the model
    that somebody else updates; they are held weakly.
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
        self._process = None if isinstance(levels.world, LocalCommunicator) else os.getpid()
        self.slots, self.feedback, self.world = slots, feedback, levels.world
        self.streamed, self.grad_scaler = settings.streamed, settings.scaler
        self.hides = settings.streamed and not settings.in_backward
        """Whether a guard replaces `.grad` as soon as a gradient has been taken."""
        self._max_norm = settings.max_local_grad_norm
        self.queue = LaunchQueue(slots, feedback, levels, settings)
        self.updater = Updater(optimizer, slots, self.queue, settings)
        held = self.updater.chunk_bytes if settings.streamed else sum(slot.nbytes for slot in slots)
        self.scatter = None if levels.node is None else Scatter(slots, levels.node, held)
        feedback.finiteness.at_once = False
        self.failed = False
        """Whether a step failed, so that ranks may have updated different parameters."""
        self.steps = 0
        """How many steps have been taken, without those that were skipped."""
        self._others = [weakref.ref(other) for other in others]
        alone = self.world.world_size == 1 or settings.in_backward  # some are updated before the others are sent
        self._comparisons_left = 0 if alone else STEPS
        """In how many of the next steps parameters are compared between ranks."""

    def restart(self) -> None:
        """Forget the last step, and begin the next."""
        self.arrived: list[Slot] = []
        """The slots whose gradients have been taken in this step, in the order of arrival."""
        self.has_begun = False
        """Whether a gradient of this step has been compressed, absorbed or dropped."""
        self._non_finite: NonFiniteGradient | None = None
        self._inverse_scale: float | None = None
        self._prepared = False  # whether this rank's whole gradient has been unscaled and clipped
        self.feedback.finiteness.restart()
        for slot in self.slots:
            slot.restart()
        if self.scatter is not None:
            self.scatter.restart()
        self.updater.restart()
        self.feedback.begin_step(self.steps)

    def refuse_if_failed(self) -> None:
        """Raise UsageError if an earlier step failed, or this is a fork of the process that was to train."""
        if self._process is not None:
            refuse_fork(self._process)
        if self.failed:
            raise UsageError(
                "an earlier step failed, and ranks may have updated different parameters: build model and optimizer "
                "anew, on every rank, from a checkpoint"
            )

    # --- gradients arrive, from a backward pass or by hand ---

    def begin_backward(self) -> None:
        """Begin a backward pass: if averages are used within it, no guard of an earlier pass may be in `.grad`."""
        if self.updater.in_backward:
            for slot in self.arrived:
                if slot.stage is Stage.GUARDED:
                    slot.uncover()

    def end_backward(self) -> None:
        """End a backward pass: guard all that has been taken."""
        if self.updater.in_backward:
            for slot in self.arrived:
                slot.hide()

    def expect(self, slot: Slot) -> None:
        """Prepare for a gradient of `slot`, which autograd is about to add to `.grad`, from which what the residual has
        absorbed is cleared.

        Raises UsageError if another has been put there by hand, since that memory may be in use elsewhere.
        """
        if slot.is_over:
            raise UsageError(SECOND_BACKWARD.format(name=slot.name))
        if slot.stage is Stage.ABSORBED:
            if not slot.is_guarded:
                raise UsageError(WAS_DROPPED.format(name=slot.name))
            slot.parameter.grad = None
        elif slot.stage is Stage.OPEN and not slot.passes and slot.parameter.grad is not None:
            raise UsageError(WAS_THERE.format(name=slot.name))

    def has_gone(self, slot: Slot) -> bool:
        """Whether autograd has left no gradient: the parameter of `slot` was frozen after the forward pass, or a hook
        of somebody has dropped it. What the residual has absorbed of earlier passes stays there."""
        if slot.parameter.grad is not None:
            return False
        if slot.stage is Stage.ABSORBED and not slot.parameter.requires_grad:
            slot.hide()
            return True
        return slot.stage is Stage.OPEN

    def gradient(self, slot: Slot, passes: int | None) -> None:
        """Take `slot`'s gradient, which autograd has finished. UsageError if it was already under way.

        passes: number of backward passes, of which the last is sent; None: this one is not the last.
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
            if self.updater.in_backward:
                self.updater.update_early(slot)
        else:
            self._hold(slot)

    def _hold(self, slot: Slot) -> None:
        """Have the residual absorb the gradient of `slot` from a pass before the last, or leave it in `.grad`."""
        grad = slot.parameter.grad
        absorbs = self.streamed and slot.slices is None and self.feedback.absorbs(slot.name)
        if not absorbs or grad is None or grad.layout != torch.strided:
            return
        slot.check_kind()
        if self.grad_scaler is not None:
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

    def _take(self, slot: Slot) -> None:
        """Take `slot`'s gradient of this step, by way of the node if there are two levels, and launch what is ready."""
        slot.check_kind()
        try:
            if not (slot.is_guarded and slot.stage in (Stage.ABSORBED, Stage.LAST)):  # else the residual has all of it
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
        if self.scatter is None:
            self._compress(slot)
        else:
            for one, mean in self.scatter.advance(self.queue.buckets):
                self._take_slice(one, mean)
        self.queue.launch(self.steps)

    def _take_slice(self, slot: Slot, mean: Tensor | None) -> None:
        """With two levels: take this rank's slice of the `mean` over its node; None if no rank there has one."""
        if slot.elsewhere:
            self.arrived.append(slot)
        slot.gradient, slot.is_ready = mean, True
        self._compress(slot)

    def _compress(self, slot: Slot) -> None:
        """Compress the bucket of `slot`, which has just come, if all its gradients have."""
        bucket = self.queue.bucket_of[slot]
        if bucket.is_ready:
            self.queue.compress(bucket, self.steps)

    def _gradient(self, slot: Slot) -> Tensor:
        """Return the gradient that has come in this step, unscaled."""
        grad = slot.parameter.grad
        if grad is None or slot.stage is Stage.ABSORBED:
            raise UsageError(WAS_DROPPED.format(name=slot.name))
        if grad.layout != torch.strided:
            raise UsageError(f"the gradient of {slot.name!r} is sparse: make its layer with sparse=False")
        return grad if self._prepared else self._unscale_(slot.own(grad, self.streamed))

    def _unscale_(self, grad: Tensor) -> Tensor:
        """Divide by the scale of the loss, in place; it is read once per step."""
        if self.grad_scaler is None:
            return grad
        if self._inverse_scale is None:
            self._inverse_scale = self.grad_scaler.inverse_scale()
        return grad.mul_(self._inverse_scale)

    def _drop(self, slot: Slot, error: NonFiniteGradient, stage: Stage) -> None:
        """Leave a gradient out; the step goes on without it, so that all ranks reach its end."""
        self._non_finite, self.has_begun = self._non_finite or error, True
        slot.stage = stage

    def _is_spoilt(self) -> bool:
        """Whether a gradient of this rank was not finite: this reads back what has only been noted on devices."""
        self._non_finite = self._non_finite or self.queue.refused or self.feedback.finiteness.failure()
        return self._non_finite is not None

    # --- the step ---

    def take_step(self, loss: Tensor | float | None) -> bool:
        """Send what has not been sent, receive, and update. False: the step was skipped for overflow.

        Raises NonFiniteGradient on all ranks if a gradient on any of them is not finite and there is no GradScaler.
        """
        self.queue.digest = digest(slot.parameter for slot in self.slots) if self._comparisons_left else 0
        self.failed = True  # if anything ends it half-way
        is_taken = self._send_rest() and self._finish(loss)
        if not is_taken:
            self.updater.skip()
        self.failed = False
        return is_taken

    def _send_rest(self) -> bool:
        """Compress the remaining gradients. False: the gradient of some rank overflowed, and nothing was sent."""
        if not self.streamed:
            separate(self.slots, [other for ref in self._others if (other := ref()) is not None])
        waiting = (Stage.OPEN, Stage.ABSORBED)
        left = [slot for slot in reversed(self.slots) if slot.stage in waiting]  # also what was put there by hand
        pending = [slot for slot in left if (slot.passes and self.streamed) or slot.parameter.grad is not None]
        if not self.streamed and not self._prepare(pending):
            return False
        for slot in pending:
            if slot.stage is not Stage.DROPPED:
                self._take(slot)
        for slot in self.slots:  # room for the averages
            if slot.stage is Stage.GUARDED:
                slot.uncover()
            elif slot.is_guarded:  # not finite: nothing of it is under way
                slot.parameter.grad = None
        if self.scatter is not None:
            for slot, mean in self.scatter.complete(self.queue.buckets):
                self._take_slice(slot, mean)
                self.queue.launch(self.steps)
        return True

    def _prepare(self, pending: Sequence[Slot]) -> bool:
        """Unscale and clip this rank's kept gradients. False: the gradient of some rank overflowed."""
        if self._max_norm is None and self.grad_scaler is None:
            return True
        norms = {}
        for slot in pending:
            grad = self._gradient(slot)
            try:
                self.feedback.finiteness.check_(grad, slot.name)
                norms[slot] = torch.linalg.vector_norm(grad)
            except NonFiniteGradient as error:
                self._drop(slot, error, Stage.DROPPED)
        if self._max_norm is not None:
            _, factor = clip_factor(list(reversed(norms.values())), self._max_norm)
            scale_(norms, factor)
        self._prepared = True
        if self.grad_scaler is None:
            return True
        # No message is under way yet, so all ranks ask at the same point.
        count = torch.tensor([int(self._is_spoilt())], device=self.world.control_device)
        return not self.world.all_reduce(count, "resireduce.overflow").wait()

    def _finish(self, loss: Tensor | float | None) -> bool:
        """Receive all averages, and update. False: the step was skipped, and what was sent has been put back."""
        step = self.steps
        self.steps = step + 1  # hooks of the wrapped optimizer find this step counted
        self.queue.launch(step, complete=True)
        self.feedback.end_step(step)  # after all rounds: the last updates a residual
        self.updater.finish(step, self._is_spoilt, loss)
        self.queue.finish(self.arrived)
        if not self.queue.flagged:
            for slot in self.queue.unused:  # with two levels the averages of a bucket come together
                self.feedback.states.forget(slot.name)
            self.feedback.states.commit()
            self._comparisons_left = max(0, self._comparisons_left - 1)  # a step that was skipped has changed nothing
            return True
        if self.grad_scaler is None:
            raise self._non_finite or NonFiniteGradient(
                "a gradient of another rank holds NaN or infinity; that rank says which"
            )
        for slot in self.arrived:
            if slot.sent is not None:
                sent = self.feedback.compressor_of(slot.name).decompress(slot.sent)
                self.feedback.add_to_residual(sent, slot.name, step + 1)
        self.feedback.end_step(step + 1)  # another number: what was drawn for this step is drawn again
        self.steps = step
        return False


# --- The queue of buckets: in which order their messages leave, and how they come back ---


OTHER_STEP = (
    "this step is number {step} here, and another one on other ranks, which make other random choices: "
    "load_residual_state_dict(...), redistribute(...) or start_at(...) was called on some ranks alone, or with states "
    "of several steps. Call it on all, with what they saved in one step: build model and optimizer anew, from a "
    "checkpoint"
)


GATHERED = 16
"""The share of the trained bytes, 1 / GATHERED, that payloads of all ranks which are under way take at most."""


class UnderWay:
    """The buckets whose messages are under way, the oldest first. `feedback` sends them.

    A gathered message takes world size x payload bytes from launch to receipt: the next has to wait if all of them
    would take more than 1 / GATHERED of the gradients of `slots`, unless it goes alone. An all-reduced one is summed in
    its own memory.
    """

    def __init__(self, feedback: ErrorFeedback, slots: Sequence[Slot]):
        self._feedback, self._limit_bytes = feedback, sum(slot.nbytes for slot in slots) // GATHERED
        self.drop()

    def drop(self) -> None:
        """Forget all messages."""
        self._sent: deque[tuple[Bucket, int]] = deque()  # and the gathered bytes of each, as it was launched

    @property
    def oldest(self) -> Bucket | None:
        """The bucket that is to be received next, if any is under way."""
        return self._sent[0][0] if self._sent else None

    def has_room(self, bucket: Bucket) -> bool:
        """Whether the message of `bucket` may be launched before another one is received."""
        size, held = self._gathered_bytes(bucket), sum(size for _, size in self._sent)
        return not (size and held and held + size > self._limit_bytes)

    def _gathered_bytes(self, bucket: Bucket) -> int:
        assert bucket.message is not None
        return bucket.message.gathered_nbytes(self._feedback.communicator.world_size)

    def launch(self, bucket: Bucket) -> None:
        """Launch the message of `bucket`, or the first round of it."""
        assert bucket.message is not None
        size = self._gathered_bytes(bucket)
        self._feedback.send(bucket.message)
        self._sent.append((bucket, size))

    def end_rounds(self, remember: Callable[[Bucket], None] | None = None) -> None:
        """Make the payloads that ranks make in rounds: each round for all tensors in the same order.

        `remember` is called with each bucket before its message is sent.
        """
        while waiting := [bucket for bucket, _ in self._sent if isinstance(bucket.message, Round)]:
            for bucket in waiting:
                assert isinstance(bucket.message, Round)
                bucket.message = self._feedback.end_round(bucket.message)
                if remember is not None:
                    remember(bucket)
                self._feedback.send(bucket.message)

    def pop(self) -> Bucket:
        """Return the oldest bucket, whose message is to be received now."""
        return self._sent.popleft()[0]


class LaunchQueue:
    """Compresses every bucket when its gradients have come, launches the messages in an order that all ranks share, and
    receives them in that order.

    In the first step the order is the reverse of the model's; from the second step on it is the order in which rank 0's
    gradients arrived in the first step.

    With two `levels` messages carry slices, and the averages are then gathered within the node.

    Where ranks make payloads in rounds, the first round takes a message's place. The others follow in `step()`, after
    the first rounds of all tensors: each round for all tensors in the same order, before any message is received. In
    the backward pass a rank would have to wait there for others, which may be in a collective of the user's own.

    With a GradScaler and streamed gradients a copy of what is sent is kept, for a step that is skipped.
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, levels: Levels, settings: Settings):
        self.slots, self.feedback, self.world = slots, feedback, levels.world
        self._remembers = settings.streamed and settings.scaler is not None
        self.gather = None if levels.node is None else Gather(levels.node, feedback)
        self.keeps_messages = False
        """Whether a message may be delivered again."""
        self.unused: list[Slot] = []
        """The slots that had no gradient on any rank in the last step."""
        self.flagged = False
        """Whether any rank, this one included, has flagged the last step."""
        self.costs: Costs | None = None
        """Measured times by which tensors are merged, if they are."""
        self.digest = 0
        """The digest of this rank's parameters as they were before the step; 0 in a step that compares none."""
        self._order, self._order_is_learnt = list(reversed(slots)), False
        self.merge(settings.merge)
        self._under_way = UnderWay(feedback, slots)
        self._step_is_agreed = self.world.world_size == 1 or not feedback.varies
        self._restart()

    def _restart(self) -> None:
        self._launched = 0
        self.refused: NonFiniteGradient | None = None
        """The error of the first gradient that was not finite when its bucket was compressed."""
        self._under_way.drop()
        for bucket in self.buckets:
            bucket.message = None

    def merge(self, merge: object) -> None:
        """Send tensors together as `merge`, as in `resireduce.distribute`, says; call it between two steps only."""
        self._arrange(in_buckets([*reversed(self.slots)], merge, self.feedback))
        self.bucket_of = {slot: bucket for bucket in self.buckets for slot in bucket.slots}
        """The bucket of each slot."""

    def _arrange(self, buckets: Iterable[Bucket]) -> None:
        self.buckets = [*arrange(buckets, self._order)]
        """All buckets, in the order of their launch."""
        slots = [slot for bucket in self.buckets for slot in bucket.slots if self.feedback.keeps_residual(slot.name)]
        self._next = dict(pairwise(slots))  # each slot with the next that has a residual

    def prefetch_after(self, slot: Slot) -> None:
        """Start copying the residual that will be needed next, after that of `slot`, whose gradient has come."""
        if slot in self._next:
            name = self._next[slot].name
            self.feedback.residual.of(name).prefetch(name)

    def compress(self, bucket: Bucket, step: int) -> None:
        """Make the message of `bucket`, and let its gradients go; those that are not finite are left out: zeros are
        sent in their place."""
        gradients = {slot.name: slot.gradient for slot in bucket.slots}
        absorbed = [slot.name for slot in bucket.slots if slot.gradient is None and slot.stage in HERE]
        for slot in bucket.slots:
            slot.gradient = None
        refused: dict[str, NonFiniteGradient] = {}
        bucket.message = self.feedback.compress(gradients, step, absorbed, refused)
        del gradients  # before copies are made
        self._remember(bucket, refused)
        for slot in bucket.slots:
            if slot.name in refused:
                self.refused = self.refused or refused[slot.name]
                if slot.slices is None:  # otherwise it is the mean: a sum of finite gradients has overflowed
                    slot.stage = Stage.DROPPED

    def _remember(self, bucket: Bucket, refused: Container[str] = ()) -> None:
        """Keep what is about to be sent: unless it is gathered, a copy, since ranks' messages are summed in place."""
        message = bucket.message
        if not self._remembers or not isinstance(message, Message):
            return
        for slot, payload in zip(bucket.slots, message.payloads, strict=True):
            if slot.is_taken and slot.name not in refused and self.feedback.leaves_residual(slot.name):
                slot.sent = payload if message.is_gathered else payload.holding(payload.buffer.clone())

    def launch(self, step: int, complete: bool = False) -> None:
        """Launch what is ready. `complete`: no more gradients will come, so the missing ones are sent as zeros.

        If messages depend on the step number, they wait until ranks have compared theirs once, when the first step is
        complete. Raises UsageError, on all ranks, if `step` is not the same on each.
        """
        if complete and not self._step_is_agreed:
            self._sums([], step)  # where messages depend on the step number: at the end of the first step alone
            self._step_is_agreed = True
        if not self._step_is_agreed:
            return
        while self._launched < len(self.buckets):
            if not complete and self.feedback.communicator.would_block:
                return  # another rank may be in a collective of the user's own, and reach this one only in step()
            bucket = self.buckets[self._launched]
            if bucket.message is None:
                if not complete:
                    return
                self.compress(bucket, step)
            if not self._under_way.has_room(bucket):
                return
            self._under_way.launch(bucket)
            self._launched += 1
        if complete:
            self._under_way.end_rounds(self._remember)

    def next(self) -> Bucket | None:
        """Return the bucket whose message is the oldest under way, if any is."""
        return self._under_way.oldest

    def receive(self) -> list[Slot]:
        """Receive the oldest message into the `.grad` of its parameters, and return the slots of these.

        A tensor without a gradient on this rank waits until `settle` asks the other ranks.
        """
        taken = [slot for slot in self._under_way.pop().slots if slot.is_taken]
        if taken:
            self.deliver(taken)
        return taken

    def deliver(self, slots: Sequence[Slot]) -> None:
        """Decompress what has come for `slots`, all of one bucket, into the `.grad` of their parameters."""
        bucket = self.bucket_of[slots[0]]
        assert isinstance(bucket.message, Message)
        kept = [slot.parameter.grad for slot in slots]
        if self.gather is not None:
            averages = self.gather.averages(slots, bucket)
        else:
            into = [one if one is not None and one.is_contiguous() else None for one in kept]
            chosen = {*slots}
            places = [place for place, slot in enumerate(bucket.slots) if slot in chosen]
            averages = self.feedback.receive(bucket.message, places, into)
        for slot, own, average in zip(slots, kept, averages, strict=True):
            if own is None:
                slot.parameter.grad = laid_out(average, slot.parameter)
            elif own is not average:
                own.copy_(average)
        if not (self.keeps_messages or any(not slot.is_taken for slot in bucket.slots)):
            bucket.message = None

    def settle(self, flag: bool, step: int) -> list[Slot]:
        """Agree on the tensors that had no gradient here: averages are delivered if another rank had one, else dropped.

        Agree also on whether to go on: `flagged` is whether any rank gave a `flag`, for a gradient that cannot be used.
        This is the step's last collective, since a rank may still be launching the others.
        """
        presence = self.agree(flag, step)
        if not self.flagged and self.feedback.momentum is not None:  # one that is not finite is present nowhere
            refuse_partly_absent(self.slots, presence, self.world.world_size)
        absent = [slot for bucket in self.buckets for slot in bucket.slots if not slot.is_taken]
        found = [slot for slot in absent if presence[slot.index]]
        self.unused = [slot for slot in absent if not presence[slot.index]]
        for slot in found:
            self.deliver([slot])
        return found

    def agree(self, flag: bool, step: int) -> list[int]:
        """Return how many ranks have a gradient, of each slot, and note whether any gave a `flag`. Warns if digests of
        parameters differ."""
        here = [*(int(slot.is_taken) for slot in self.slots), int(flag)]
        compared = [self.digest, self.digest**2] if self.digest else []  # on all ranks in the same steps
        sums = self._sums([*here, *compared], step)
        self.flagged = bool(sums[len(self.slots)])
        if compared and sums[-1] * self.world.world_size != sums[-2] ** 2:
            warn(DRIFTED)
        return sums[: len(self.slots)]

    def _sums(self, here: list[int], step: int) -> list[int]:
        """Return the sums of all ranks' numbers. Raises UsageError, on all ranks, if `step` differs between them."""
        mine = torch.tensor([*here, step, step * step], device=self.world.control_device)
        *sums, total, squares = self.world.all_reduce(mine, "resireduce.presence").wait().tolist()
        if squares * self.world.world_size != total * total:
            raise UsageError(OTHER_STEP.format(step=step))
        return sums

    def finish(self, arrived: Sequence[Slot]) -> None:
        """End the step whose gradients came here in the order `arrived`; the first time, take over rank 0's order."""
        if not self._order_is_learnt:
            absent = [slot for slot in reversed(self.slots) if not slot.is_taken]
            indices = [slot.index for slot in [*(slot for slot in arrived if slot.is_taken), *absent]]
            order: Tensor = torch.tensor(indices, device=self.world.control_device)
            self.world.broadcast_(order, "resireduce.order")
            self._order = [self.slots[index] for index in order.tolist()]
            self._arrange(self.buckets)
            self._order_is_learnt = True
        self._restart()


def refuse_partly_absent(slots: Sequence[Slot], presence: Sequence[int], world_size: int) -> None:
    """Raise UsageError, on all ranks, if momentum is corrected and some of `world_size` ranks had no gradient of one of
    `slots`: their velocity would neither be sent nor decay. `presence`: how many ranks had one, of each."""
    some = next((slot for slot in slots if 0 < presence[slot.index] < world_size), None)
    if some is not None:
        raise UsageError(
            f"{some.name!r} had a gradient on some ranks and none on others, whose velocity of it would not be "
            "averaged: use compressor='dgc' with the optimizer's own momentum, or give it a gradient of zero"
        )
