"""One step: gradients are taken and compressed, their messages go out, and the averages come back."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.core.bucket import OVER, Bucket, Slot, Stage, arrange, in_buckets, is_shared, laid_out
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Round
from resireduce.core.update import Updater
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.guard import SECOND_BACKWARD, WAS_DROPPED
from resireduce.merging.rules import Costs
from resireduce.watchers import Drift, refuse_capture

WAS_THERE = (
    "the gradient of {name!r} was in .grad before backward(), put there by hand: a gradient that is streamed is sent "
    "as soon as it is made, and what is done to that memory later has no effect. Leave .grad empty (zero_grad() "
    "does), and put gradients there after backward(); or use gradients='kept'"
)


class Skipped(Exception):
    """Ends a step that is skipped on all ranks, since a gradient overflowed on one: nothing of it has been used."""


class Exchange:
    """Takes the gradients of a step, has them compressed and sent, receives the averages, and has parameters updated.

    What options change is done by its parts. `refuse_fork` raises in a fork of the process that was to train.
    """

    def __init__(self, queue: "LaunchQueue", updater: Updater, lifetime: "Streamed", refuse_fork: Callable[[], object]):
        self.slots, self.feedback, self.queue, self.updater = queue.slots, queue.feedback, queue, updater
        self.lifetime, self.scaling, self._refuse_fork = lifetime, queue.scaling, refuse_fork
        self.feedback.finiteness.at_once = False
        self.failed = False
        """Whether a step failed, so that ranks may have updated different parameters."""
        self.steps = 0
        """How many steps have been taken, without those that were skipped."""

    def restart(self) -> None:
        """Forget the last step, and begin the next."""
        for slot in self.slots:
            slot.restart()
        self.queue.restart()
        self.updater.restart()
        self.feedback.begin_step(self.steps)

    def refuse_if_failed(self) -> None:
        """Raise UsageError after a step that failed, in a fork of the process, or while a CUDA graph is recorded."""
        refuse_capture(self.slots[0].parameter.device)
        self._refuse_fork()
        if self.failed:
            raise UsageError(
                "an earlier step failed, and ranks may have updated different parameters: build model and optimizer "
                "anew, on every rank, from a checkpoint"
            )

    # --- gradients arrive, from a backward pass or by hand ---

    def expect(self, slot: Slot) -> None:
        """Prepare for a gradient of `slot`, which autograd is about to add to `.grad`, from which what the residual has
        absorbed is cleared.

        Raises UsageError if another has been put there by hand, since that memory may be in use elsewhere.
        """
        if slot.stage in OVER:
            raise UsageError(SECOND_BACKWARD.format(name=slot.name))
        if slot.stage is Stage.ABSORBED:
            if not slot.is_guarded:
                raise UsageError(WAS_DROPPED.format(name=slot.name))
            slot.parameter.grad = None
        elif not slot.passes and slot.parameter.grad is not None:
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

    def gradient(self, slot: Slot, passes: float) -> None:
        """Take `slot`'s gradient, which autograd has finished.

        passes: number of backward passes, of which the last is sent; infinity: this one is not the last.
        """
        slot.note_made()
        slot.passes += 1
        if slot.passes < passes:
            self._hold(slot)
        else:
            slot.stage = Stage.OPEN
            self.queue.prefetch_after(slot)
            self._take(slot)
            self.lifetime.use_early(slot, self.updater)

    def _hold(self, slot: Slot) -> None:
        """Have the residual absorb the gradient of a pass before the last; one that is not finite stays in `.grad`."""
        grad = slot.parameter.grad
        if grad is None or slot.slices is not None or not self.feedback.absorbs(slot.name):
            return
        slot.check_kind()
        if self.scaling.skips:
            grad = self.lifetime.owned(grad, slot)
        try:
            self.feedback.absorb(grad, slot.name)
        except NonFiniteGradient:
            slot.stage = Stage.OPEN
        else:
            slot.stage = Stage.ABSORBED
            slot.hide()

    def _take(self, slot: Slot) -> None:
        """Take `slot`'s gradient of this step, have it go its route, and launch what is ready."""
        slot.check_kind()
        try:
            if not (slot.is_guarded and slot.stage is Stage.ABSORBED):  # else the residual has all of it
                grad = self.gradient_of(slot)
                self.queue.route.check_(grad, slot)
                slot.gradient = grad.contiguous()
        except NonFiniteGradient as error:
            self.drop(slot, error)
        else:
            slot.stage = Stage.TAKEN
            self.queue.arrived.append(slot)
        self.lifetime.took(slot)
        self.queue.route.advance(slot, self.queue, self.steps)
        self.queue.launch(self.steps)

    def gradient_of(self, slot: Slot) -> Tensor:
        """Return the gradient that has come in this step, unscaled: it may be overwritten."""
        grad = slot.parameter.grad
        if grad is None or slot.stage is Stage.ABSORBED:
            raise UsageError(WAS_DROPPED.format(name=slot.name))
        return self.lifetime.owned(grad, slot)

    def drop(self, slot: Slot, error: NonFiniteGradient) -> None:
        """Leave a gradient out; the step goes on without it, so that all ranks reach its end."""
        self.queue.refused = self.queue.refused or error
        slot.stage = Stage.DROPPED

    # --- the step ---

    def take_step(self) -> bool:
        """Send what has not been sent, receive, and update. False: the step was skipped for overflow.

        Raises NonFiniteGradient on all ranks if a gradient on any of them is not finite and there is no GradScaler.
        """
        step, queue, self.failed = self.steps, self.queue, True  # if anything ends it half-way
        for one in queue.comparisons:  # before anything is updated
            one.look()
        try:
            for slot in self.lifetime.pending(self):
                self._take(slot)
            for slot in self.slots:  # room for the averages
                slot.made = None
                if slot.stage is Stage.GUARDED:
                    slot.uncover()
                elif slot.is_guarded:  # not finite: nothing of it is under way
                    slot.parameter.grad = None
            queue.route.complete(queue, step)
            self.steps = step + 1  # hooks of the wrapped optimizer find this step counted
            queue.launch(step, complete=True)
            self.feedback.end_step(step)  # after all rounds: the last updates a residual
            self.updater.finish(step)
            queue.finish()
            if queue.flagged:
                self.scaling.refuse(queue.arrived, step, queue.refused)
            for slot in queue.unused:  # with two levels the averages of a bucket come together
                self.feedback.states.changed.pop(slot.name, None)
            self.feedback.states.commit()
        except Skipped:
            self.steps = step
        self.failed = False
        return self.steps > step


# --- What a plain step does where an option would do something else: `resireduce.forms` has the other forms ---


class Unscaled:
    """The loss is not scaled, so that no step is skipped."""

    skips = False
    """Whether a step is skipped in which a gradient of some rank overflows."""

    def unscale_(self, grad: Tensor) -> Tensor:
        """Divide `grad` by the scale of the loss, in place, and return it."""
        return grad

    def remember(self, bucket: Bucket, refused: Container[str] = ()) -> None:
        """Keep what is about to be sent of `bucket`, without the tensors `refused`, for a step that is skipped."""

    def refuse(self, arrived: Sequence[Slot], step: int, error: NonFiniteGradient | None) -> None:
        """Raise the `error` of this rank or another's, or put back what `step` sent of `arrived`, and raise Skipped."""
        raise error or NonFiniteGradient("a gradient of another rank holds NaN or infinity; that rank says which")


class Streamed:
    """Gradients are taken as autograd finishes them; until averages come, in `step()`, a guard stands in `.grad`."""

    def __init__(self, scaling: Unscaled, chunk_bytes: float):
        self.scaling, self.chunk_bytes = scaling, chunk_bytes
        """Averages of so many bytes may be alive at once, where the wrapped optimizer allows that."""

    def owned(self, grad: Tensor, slot: Slot) -> Tensor:
        """Return `grad`, which is in `.grad` of `slot`, unscaled: a copy, where others use its memory."""
        return self.scaling.unscale_(slot.own(grad, is_shared(grad)))

    def took(self, slot: Slot) -> None:
        """Note that the gradient of `slot` has been taken, or dropped."""
        slot.hide()

    def after_backward(self, slots: Sequence[Slot]) -> None:
        """Note that a backward pass of `slots` has ended."""

    def use_early(self, slot: Slot, updater: Updater) -> None:
        """Use averages, if any are used early, when the gradient of `slot` has been taken in the backward pass."""

    def pending(self, exchange: Exchange) -> list[Slot]:
        """Return the slots whose gradient, in `.grad`, also by hand, or absorbed, `step()` has to take: last first."""
        left = [slot for slot in reversed(exchange.slots) if slot.stage in (Stage.OPEN, Stage.ABSORBED)]
        return [slot for slot in left if slot.passes or slot.parameter.grad is not None]

    def room(self, slot: Slot, message: Message, place: int) -> Tensor:
        """Return the contiguous tensor that receives the average of `slot`, which is at `place` in the `message`."""
        return message.room(place)

    def deliver(self, slot: Slot, average: Tensor) -> None:
        """Put the `average` of `slot` into `.grad`."""
        slot.parameter.grad = laid_out(average, slot.parameter)

    def free(self, used: Sequence[Slot]) -> None:
        """Let averages go that have been used."""
        for slot in used:
            slot.parameter.grad = None


class Flat:
    """The route of gradients on one level: each rank compresses its own as they are."""

    def __init__(self, feedback: ErrorFeedback):
        self.feedback = feedback

    def check_(self, grad: Tensor, slot: Slot) -> None:
        """Look for NaN in the gradient of `slot`, as `Finiteness.check_`, if nobody does when it is compressed."""

    def advance(self, slot: Slot, queue: "LaunchQueue", step: int) -> None:
        """Compress, or send on, what is complete now that the gradient of `slot` has been taken, or dropped."""
        slot.is_ready = slot.is_taken
        queue.compress_ready(slot, step)

    def complete(self, queue: "LaunchQueue", step: int) -> None:
        """Send on what is left, once all gradients of this rank have been taken. On two levels, take the tensors of
        which only other ranks of the node have a gradient."""

    def averages(self, slots: Sequence[Slot], bucket: Bucket, lifetime: Streamed) -> list[Tensor]:
        """Return the averages of `slots` of a `bucket`, which is under way; they may lie where `lifetime` has room."""
        message = bucket.message
        assert isinstance(message, Message)
        places = {slot: place for place, slot in enumerate(bucket.slots)}
        chosen = [places[slot] for slot in slots]
        return self.feedback.receive(message, chosen, lambda place: lifetime.room(bucket.slots[place], message, place))


# --- The queue of buckets: in which order their messages leave, and how they come back ---


OTHER_STEP = (
    "this step is number {step} here, and another one on other ranks, which make other random choices: "
    "load_residual_state_dict(...), redistribute(...) or start_at(...) was called on some ranks alone, or with states "
    "of several steps. Call it on all, with what they saved in one step, after model and optimizer are built anew"
)
GATHERED = 16
"""The share of the trained bytes, 1 / GATHERED, that payloads of all ranks which are under way take at most."""


class UnderWay(deque[Bucket]):
    """The buckets whose messages are under way, the oldest first. `feedback` sends them.

    A gathered message takes world size x payload bytes from launch to receipt: the next has to wait if all of them
    would take more than 1 / GATHERED of the gradients of `slots`, unless it goes alone. An all-reduced one is summed in
    its own memory.
    """

    def __init__(self, feedback: ErrorFeedback, slots: Sequence[Slot]):
        super().__init__()
        self._feedback, self._limit_bytes = feedback, sum(slot.nbytes for slot in slots) // GATHERED

    def has_room(self, bucket: Bucket) -> bool:
        """Note how many bytes the message of `bucket` takes once all ranks' have come, and return whether it may be
        launched before another one is received."""
        assert bucket.message is not None
        bucket.gathered_bytes = self._feedback.communicator.world_size * bucket.message.gathered_bytes
        held = sum(one.gathered_bytes for one in self)
        return not (bucket.gathered_bytes and held and held + bucket.gathered_bytes > self._limit_bytes)

    def launch(self, bucket: Bucket) -> None:
        """Launch the message of `bucket`, or the first round of it; there is room for it."""
        assert bucket.message is not None
        self.append(bucket)
        self._feedback.send(bucket.message)

    def end_rounds(self, remember: Callable[[Bucket], None] = lambda bucket: None) -> None:
        """Make the payloads that ranks make in rounds: each round for all tensors in the same order.

        `remember` is called with each bucket before its message is sent.
        """
        while waiting := [bucket for bucket in self if isinstance(bucket.message, Round)]:
            for bucket in waiting:
                assert isinstance(bucket.message, Round)
                bucket.message = self._feedback.end_round(bucket.message)
                remember(bucket)
                self._feedback.send(bucket.message)


class LaunchQueue:
    """Compresses every bucket when its gradients have come, launches the messages in an order that all ranks share, and
    receives them in that order.

    In the first step the order is the reverse of the model's; from the second on that in which rank 0's gradients
    arrived in the first. What comes of a gradient before it is compressed, and of a message that has come, its `route`
    says.

    Where ranks make payloads in rounds, the first round takes a message's place, and the others follow in `step()`,
    before any message is received: earlier a rank would wait for others, which may be in a collective of the user's.
    """

    def __init__(self, slots: list[Slot], world: Communicator, route: Flat, lifetime: Streamed, merge: object):
        self.slots, self.feedback, self.world = slots, route.feedback, world
        self.route, self.lifetime, self.scaling = route, lifetime, lifetime.scaling
        self._waits = self.feedback.varies and world.world_size > 1
        """Whether messages depend on the number of the step, and ranks have not compared it yet."""
        self.checks = [] if self.feedback.compressor.momentum is None else [refuse_partly_absent]
        """What may raise for how many of all ranks have a gradient of each slot, if all are finite."""
        self.comparisons: list[Drift] = []
        """What ranks compare in their first steps."""
        self.unused: list[Slot] = []
        """The slots that had no gradient on any rank in the last step."""
        self.flagged = False
        """Whether any rank, this one included, had a gradient in the last step that was not finite."""
        self.costs: Costs | None = None
        """Measured times by which tensors are merged, if they are."""
        self._order, self._order_is_learnt = list(reversed(slots)), False
        self.merge(merge)
        self.under_way = UnderWay(self.feedback, slots)
        """The buckets whose messages are under way."""

    def restart(self) -> None:
        """Forget the messages of the last step, and begin the next."""
        self._launched = 0
        self.arrived: list[Slot] = []
        """The slots whose gradients have been taken in this step, in the order of arrival."""
        self.refused: NonFiniteGradient | None = None
        """The error of the first gradient of this step that was not finite."""
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

    def compress_ready(self, slot: Slot, step: int) -> None:
        """Compress the bucket of `slot`, of which something has come, if all its gradients have."""
        bucket = self.bucket_of[slot]
        if bucket.is_ready:
            self.compress(bucket, step)

    def compress(self, bucket: Bucket, step: int) -> None:
        """Make the message of `bucket`, and let its gradients go; those that are not finite are left out: zeros are
        sent in their place."""
        gradients = {slot.name: slot.gradient for slot in bucket.slots}
        absorbed = [slot.name for slot in bucket.slots if slot.gradient is None and slot.is_taken]
        for slot in bucket.slots:
            slot.gradient = None
        refused: dict[str, NonFiniteGradient] = {}
        bucket.message = self.feedback.compress(gradients, step, absorbed, refused)
        del gradients  # before copies are made
        self.scaling.remember(bucket, refused)
        for slot in bucket.slots:
            if slot.name in refused:
                self.refused = self.refused or refused[slot.name]
                if slot.slices is None:  # otherwise it is the mean: a sum of finite gradients has overflowed
                    slot.stage = Stage.DROPPED

    def launch(self, step: int, complete: bool = False) -> None:
        """Launch what is ready. `complete`: no more gradients will come, so that zeros are sent in place of the rest.

        Raises UsageError, on all ranks, if they number the step differently and messages depend on that.
        """
        if self._waits:  # till the first step is complete
            if not complete:
                return
            self.sums([], step)
            self._waits = False
        for bucket in self.buckets[self._launched :] if complete else ():  # even if there is no room for them yet
            if bucket.message is None:
                self.compress(bucket, step)
        while self._launched < len(self.buckets):
            if not complete and self.feedback.communicator.would_block:
                return  # another rank may be in a collective of the user's own, and reach this one only in step()
            bucket = self.buckets[self._launched]
            if bucket.message is None or not self.under_way.has_room(bucket):
                return
            self.under_way.launch(bucket)
            self._launched += 1
        if complete:
            self.under_way.end_rounds(self.scaling.remember)

    def receive(self) -> list[Slot]:
        """Receive the oldest message into the `.grad` of its parameters, and return the slots of these.

        A tensor without a gradient on this rank waits until `settle` asks the other ranks.
        """
        taken = [slot for slot in self.under_way.popleft().slots if slot.is_taken]
        if taken:
            self.deliver(taken)
        return taken

    def deliver(self, slots: Sequence[Slot]) -> None:
        """Decompress what has come for `slots`, all of one bucket, into the `.grad` of their parameters."""
        averages = self.route.averages(slots, self.bucket_of[slots[0]], self.lifetime)
        for slot, average in zip(slots, averages, strict=True):
            self.lifetime.deliver(slot, average)

    def is_spoilt(self) -> bool:
        """Whether a gradient of this rank was not finite: this reads back what has only been noted on devices."""
        self.refused = self.refused or self.feedback.finiteness.failure()
        return self.refused is not None

    def settle(self, step: int) -> list[Slot]:
        """Agree on the tensors that had no gradient here: averages are delivered if another rank had one, else dropped.

        Agree also on whether to go on: `flagged` is whether any rank has a gradient that cannot be used. Warns if
        digests of parameters differ. This is the step's last collective, since a rank may still be launching others.
        """
        here = [*(int(slot.is_taken) for slot in self.slots), int(self.is_spoilt())]
        compared = [number for one in self.comparisons for number in one.numbers]
        presence = self.sums([*here, *compared], step)
        ranks, self.flagged = self.world.world_size, bool(presence[len(self.slots)])
        self.comparisons = [one for one in self.comparisons if one.compare(presence[len(here) :], ranks, self.flagged)]
        for check in self.checks:
            if not self.flagged:  # one that is not finite is present nowhere
                check(self.slots, presence, ranks)
        absent = [slot for bucket in self.buckets for slot in bucket.slots if not slot.is_taken]
        found = [slot for slot in absent if presence[slot.index]]
        self.unused = [slot for slot in absent if not presence[slot.index]]
        for slot in found:
            self.deliver([slot])
        return found

    def sums(self, here: list[int], step: int) -> list[int]:
        """Return the sums of all ranks' numbers. Raises UsageError, on all ranks, if `step` differs between them."""
        mine = torch.tensor([*here, step, step * step], device=self.world.control_device)
        *sums, total, squares = self.world.all_reduce(mine, "resireduce.presence").wait().tolist()
        if squares * self.world.world_size != total * total:
            raise UsageError(OTHER_STEP.format(step=step))
        return sums

    def finish(self) -> None:
        """End a step; the first time, take over the order in which gradients have arrived on rank 0."""
        if not self._order_is_learnt:
            absent = [slot for slot in reversed(self.slots) if not slot.is_taken]
            indices = [slot.index for slot in [*(slot for slot in self.arrived if slot.is_taken), *absent]]
            order: Tensor = torch.tensor(indices, device=self.world.control_device)
            self.world.broadcast_(order, "resireduce.order")
            self._order = [self.slots[index] for index in order.tolist()]
            self._arrange(self.buckets)
            self._order_is_learnt = True


def refuse_partly_absent(slots: Sequence[Slot], presence: Sequence[int], world_size: int) -> None:
    """Raise UsageError, on all ranks, if momentum is corrected and some of `world_size` ranks had no gradient of one of
    `slots`: their velocity would neither be sent nor decay. `presence`: how many ranks had one, of each."""
    some = next((slot for slot in slots if 0 < presence[slot.index] < world_size), None)
    if some is not None:
        raise UsageError(
            f"{some.name!r} had a gradient on some ranks and none on others, whose velocity of it would not be "
            "averaged: use compressor='dgc' with the optimizer's own momentum, or give it a gradient of zero"
        )
