"""One step: gradients are taken and compressed, their messages go out, and the averages come back."""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.core.bucket import Bucket, Slot, Stage, arrange, in_buckets, is_shared
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message
from resireduce.core.update import Updater
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.guard import SECOND_BACKWARD
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

    def __init__(self, queue: "LaunchQueue", updater: Updater, refuse_fork: Callable[[], object]):
        self.slots, self.feedback, self.queue, self.updater = queue.slots, queue.feedback, queue, updater
        self.lifetime, self.scaling, self._refuse_fork = queue.lifetime, queue.scaling, refuse_fork
        self.failed = False
        """Whether a step failed, so that ranks may have updated different parameters."""
        self.steps = 0
        """How many steps have been taken, without those that were skipped."""

    def restart(self) -> None:
        """Forget the last step, and begin the next."""
        for slot in self.slots:
            slot.restart()
        self.queue.restart()
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
        """Raise UsageError, since autograd is about to add a gradient to that of `slot`, which is under way, or was put
        into `.grad` by hand, so that its memory may be in use elsewhere."""
        raise UsageError((WAS_THERE if slot.stage is Stage.OPEN else SECOND_BACKWARD).format(name=slot.name))

    def has_gone(self, slot: Slot) -> bool:
        """Whether autograd has left no gradient: the parameter of `slot` was frozen after the forward pass, or a hook
        of somebody has dropped it."""
        return slot.parameter.grad is None

    def gradient(self, slot: Slot) -> None:
        """Take `slot`'s gradient, which autograd has finished."""
        slot.note_made()
        self.take(slot)
        self.lifetime.use_early(slot, self.updater)

    def take(self, slot: Slot) -> None:
        """Take `slot`'s gradient of this step, which is in `.grad`, have it go its route, and launch what is ready."""
        slot.check_kind()
        try:
            grad = self.lifetime.owned(slot)
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

    def drop(self, slot: Slot, error: NonFiniteGradient) -> None:
        """Leave a gradient out; the step goes on without it, so that all ranks reach its end."""
        self.queue.refused = self.queue.refused or error
        slot.stage = Stage.DROPPED

    # --- the step ---

    def take_step(self) -> bool:
        """Send what has not been sent, receive, and update. False: the step was skipped for overflow."""
        step, queue = self.steps, self.queue
        self.failed = True  # until the end, so that it stays if anything raises
        for one in queue.comparisons:  # before anything is updated
            one.look()
        try:
            for slot in self.lifetime.pending(self):
                self.take(slot)
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


# --- What a plain step does where an option would do something else: `forms.py` and `node.py` have the other forms ---
#
# attribute   plain step    chosen instead when the optimizer is built
# scaling     Unscaled      Scaling: grad_scaler
# lifetime    Streamed      Kept: gradients="kept"; Early: update="in_backward"
# route       Flat          ByNodes: hierarchy="node"
# under_way   UnderWay      InRounds: compressors whose ranks make payloads in rounds
# queue       LaunchQueue   Varying: messages of several ranks whose form depends on the step, as in a warm-up
# updater     Updater       MeasuringUpdater: max_grad_norm, or grad_scaler with streamed gradients
# exchange    Exchange      Prefetching: residual_device
# finiteness  Finiteness    SeenInSums: top-k in compiled code, where residuals stay until they are updated


class Unscaled:
    """The loss is not scaled, so that no step is skipped."""

    skips = False
    """Whether a step is skipped in which a gradient of some rank overflows."""

    def unscale_(self, grad: Tensor) -> Tensor:
        """Divide `grad` by the scale of the loss, in place, and return it."""
        return grad

    def remember(self, bucket: Bucket) -> None:
        """Keep what is about to be sent of `bucket`, for a step that is skipped."""

    def refuse(self, arrived: Sequence[Slot], step: int, error: NonFiniteGradient | None) -> None:
        """Raise the `error` of this rank or another's, or put back what `step` sent of `arrived`, and raise Skipped."""
        raise error or NonFiniteGradient("a gradient of another rank holds NaN or infinity; that rank says which")


class Streamed:
    """Gradients are taken as autograd finishes them; until averages come, in `step()`, a guard stands in `.grad`."""

    def __init__(self, scaling: Unscaled, chunk_bytes: float):
        self.scaling, self.chunk_bytes = scaling, chunk_bytes
        """Averages of so many bytes may be alive at once, where the wrapped optimizer allows that."""

    def owned(self, slot: Slot) -> Tensor:
        """Return what is in `.grad` of `slot`, unscaled: a copy, where others use its memory."""
        return self.scaling.unscale_(slot.own(is_shared(slot.grad)))

    def took(self, slot: Slot) -> None:
        """Note that the gradient of `slot` has been taken, or dropped."""
        slot.hide()

    def after_backward(self, slots: Sequence[Slot]) -> None:
        """Note that a backward pass of `slots` has ended."""

    def use_early(self, slot: Slot, updater: Updater) -> None:
        """Use averages, if any are used before `step()`, now that the gradient of `slot` has been taken."""

    def pending(self, exchange: Exchange) -> list[Slot]:
        """Return the slots whose gradient `step()` has to take, which is in `.grad`, perhaps by hand: last first."""
        left = [slot for slot in reversed(exchange.slots) if slot.stage is Stage.OPEN]
        return [slot for slot in left if slot.parameter.grad is not None]

    def room(self, slot: Slot, message: Message, place: int) -> Tensor:
        """Return the contiguous tensor that receives the average of `slot`, which is at `place` in the `message`."""
        return message.room(place)

    def deliver(self, slot: Slot, average: Tensor) -> None:
        """Put the `average` of `slot` into `.grad`, with the strides of its parameter, which fused optimizers want."""
        if average.stride() != slot.parameter.stride():
            average = torch.empty_like(slot.parameter, dtype=average.dtype).detach_().copy_(average)
        slot.parameter.grad = average

    def free(self, used: Sequence[Slot]) -> None:
        """Let averages go that have been used."""
        for slot in used:
            slot.parameter.grad = None


class Flat:
    """The route of gradients on one level: each rank compresses its own as they are."""

    def __init__(self, feedback: ErrorFeedback):
        self.feedback = feedback

    def check_(self, grad: Tensor, slot: Slot) -> None:
        """Raise NonFiniteGradient if the gradient of `slot` is not finite, and that is not asked later."""
        self.feedback.finiteness.check_arrived(grad, slot.name)

    def advance(self, slot: Slot, queue: "LaunchQueue", step: int) -> None:
        """Compress, or send on, what is complete now that the gradient of `slot` has been taken, or dropped."""
        slot.is_ready = True  # also without one: zeros are sent, as others wait for the message
        queue.compress_ready(slot, step)

    def complete(self, queue: "LaunchQueue", step: int) -> None:
        """Do nothing, once all gradients of this rank have been taken. On two levels, send on what is left, and take
        the tensors of which only other ranks of the node have a gradient."""

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


class UnderWay(deque[Bucket]):
    """The buckets whose messages are under way, the oldest first. `feedback` sends them.

    A gathered message takes world size x payload bytes from launch to receipt: the next has to wait if all of them
    would take more than a sixteenth of the gradients of `slots`, unless it goes alone. An all-reduced one is summed in
    its own memory.
    """

    def __init__(self, feedback: ErrorFeedback, slots: Sequence[Slot]):
        super().__init__()
        self.feedback, self._limit_bytes = feedback, sum(slot.nbytes for slot in slots) // 16

    def has_room(self, bucket: Bucket) -> bool:
        """Note how many bytes the message of `bucket` takes once all ranks' have come, and return whether it may be
        launched before another one is received."""
        assert bucket.message is not None
        bucket.gathered_bytes = self.feedback.communicator.world_size * bucket.message.gathered_bytes
        held = sum(one.gathered_bytes for one in self)
        return not (bucket.gathered_bytes and held and held + bucket.gathered_bytes > self._limit_bytes)

    def launch(self, bucket: Bucket) -> None:
        """Launch the message of `bucket`, or the first round of it; there is room for it."""
        assert bucket.message is not None
        self.append(bucket)
        self.feedback.send(bucket.message)

    def end_rounds(self, scaling: "Unscaled") -> None:
        """Do nothing: no payload is made in rounds here. `scaling` may remember what is about to be sent."""


class LaunchQueue:
    """Compresses every bucket when its gradients have come, launches the messages in an order that all ranks share, and
    receives them in that order.

    In the first step the order is the reverse of the model's; from the second on that in which rank 0's gradients
    arrived in the first. What comes of a gradient before it is compressed, and of a message that has come, its `route`
    says.

    Where ranks make payloads in rounds, the first round takes a message's place, and the others follow in `step()`,
    before any message is received: earlier a rank would wait for others, which may be in a collective of the user's.
    """

    def __init__(
        self,
        under_way: UnderWay,
        slots: list[Slot],
        world: Communicator,
        route: Flat,
        lifetime: Streamed,
        merge: object,
    ):
        self.under_way, self.slots, self.feedback, self.world = under_way, slots, route.feedback, world
        self.route, self.lifetime, self.scaling = route, lifetime, lifetime.scaling
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
        self.buckets = [*arrange(in_buckets([*reversed(self.slots)], merge, self.feedback), self._order)]
        """All buckets, in the order of their launch."""
        self.bucket_of = {slot: bucket for bucket in self.buckets for slot in bucket.slots}

    def compress_ready(self, slot: Slot, step: int) -> None:
        """Compress the bucket of `slot`, of which something has come, if all its gradients have."""
        bucket = self.bucket_of[slot]
        if bucket.is_ready:
            self.compress(bucket, step)

    def compress(self, bucket: Bucket, step: int) -> None:
        """Make the message of `bucket`, and let its gradients go."""
        gradients = {slot.name: slot.gradient for slot in bucket.slots}
        for slot in bucket.slots:
            slot.gradient = None
        bucket.message = self.feedback.compress(gradients, step)
        del gradients  # before copies are made
        self.scaling.remember(bucket)

    def launch(self, step: int, complete: bool = False) -> None:
        """Launch what is ready. `complete`: no more gradients will come, so that zeros are sent for the rest."""
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
            self.under_way.end_rounds(self.scaling)

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
        digests of parameters differ. No message of a bucket may follow it: another rank may still be launching some.
        """
        here = [*(int(slot.is_taken) for slot in self.slots), int(self.is_spoilt())]
        compared = [number for one in self.comparisons for number in one.numbers]
        presence = self.sums([*here, *compared], step)
        ranks, self.flagged = self.world.world_size, bool(presence[len(self.slots)])
        self.comparisons = [one for one in self.comparisons if one.compare(presence[len(here) :], ranks, self.flagged)]
        if not self.flagged:  # one that is not finite is present nowhere
            self.feedback.velocities.check_present(presence, ranks)
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
            self.buckets = [*arrange(self.buckets, self._order)]
            self._order_is_learnt = True
