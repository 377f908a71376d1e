"""The queue of buckets: in which order their messages leave, and how they come back."""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from resireduce.comm.nodes import Levels
from resireduce.core.bucket import Bucket, Slot, arrange, in_buckets, laid_out
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Round
from resireduce.errors import NonFiniteGradient, UsageError, warn
from resireduce.merging.rules import Costs
from resireduce.node import Gather
from resireduce.watchers import DRIFTED

OTHER_STEP = (
    "this step is number {step} here, and another one on other ranks, which make other random choices: "
    "load_residual_state_dict(...), redistribute(...) or start_at(...) was called on some ranks alone, or with states "
    "of several steps. Call it on all, with what they saved in one step: build model and optimizer anew, from a "
    "checkpoint"
)


class LaunchQueue:
    """Compresses every bucket when its gradients have come, launches the messages in an order that all ranks share, and
    receives them in that order.

    In the first step the order is the reverse of the model's; from the second step on it is the order in which rank 0's
    gradients arrived in the first step.

    A gathered message takes world size x payload bytes from launch to receipt: if all of them would take more than
    `gathered_limit`, the next waits. A single larger message goes alone. With two `levels` messages carry slices, and
    the averages are then gathered within the node.

    Where ranks make payloads in rounds, the first round takes a message's place. The others follow in `step()`, after
    the first rounds of all tensors: each round for all tensors in the same order, before any message is received. In
    the backward pass a rank would have to wait there for others, which may be in a collective of the user's own.

    Args:
        slots: one for each parameter.
        feedback: compresses and averages.
        gathered_limit: in bytes.
        levels: the ranks of this one's node, and of its place in all nodes.
        remembers: whether to keep a copy of what is sent, for a step that is skipped.
        merge: which tensors travel together, as in `resireduce.distribute`.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        feedback: ErrorFeedback,
        gathered_limit: int,
        levels: Levels,
        remembers: bool = False,
        merge: object = None,
    ):
        self.slots, self.feedback, self.world = slots, feedback, levels.world
        self.gather = None if levels.node is None else Gather(levels.node, feedback)
        self.keeps_messages = False
        """Whether a message may be delivered again."""
        self.flagged = False
        """Whether any rank, this one included, has flagged the last step."""
        self.costs: Costs | None = None
        """Measured times by which tensors are merged, if they are."""
        self.digest = 0
        """The digest of this rank's parameters as they were before the step; 0 in a step that compares none."""
        self._order, self._order_is_learnt = list(reversed(slots)), False
        self.merge(merge)
        self.gathered_limit, self._remembers = gathered_limit, remembers
        self._step_is_agreed = self.world.world_size == 1 or not feedback.varies
        self._restart()

    def _restart(self) -> None:
        self._launched = self._gathered_bytes = 0
        self._under_way: deque[tuple[Bucket, int]] = deque()  # and its gathered bytes
        self._parked: list[Slot] = []
        for bucket in self.buckets:
            bucket.restart()

    def merge(self, merge: object) -> None:
        """Send tensors together as `merge`, as in `resireduce.distribute`, says; call it between two steps only."""
        self.buckets = self._arranged(self._made(merge))
        """All buckets, in the order of their launch."""
        self.bucket_of = {slot: bucket for bucket in self.buckets for slot in bucket.slots}
        """The bucket of each slot."""
        self._next: dict[Slot, Slot] | None = None  # each slot with the next that has a residual

    def _made(self, merge: object) -> list[Bucket]:
        return in_buckets(list(reversed(self.slots)), merge, self.feedback)

    def _arranged(self, buckets: Iterable[Bucket]) -> list[Bucket]:
        return [*arrange(buckets, self._order)]

    @property
    def compressed(self) -> list[Slot]:
        """Return the slots whose tensors are compressed, once warm-up is over, in the order of arrival."""
        return [slot for slot in self._order if self.feedback.compresses(slot.name)]

    def prefetch_after(self, slot: Slot) -> None:
        """Start copying the residual that will be needed next, after that of `slot`, whose gradient has come."""
        if self._next is None:
            slots = [slot for bucket in self.buckets for slot in bucket.slots]
            self._next = dict(pairwise([slot for slot in slots if self.feedback.keeps_residual(slot.name)]))
        if slot in self._next:
            name = self._next[slot].name
            self.feedback.residual.of(name).prefetch(name)

    def compress(self, bucket: Bucket, step: int) -> dict[Slot, NonFiniteGradient]:
        """Make the message of `bucket`; return which gradients were not finite: zeros are sent in their place."""
        refused = bucket.compress(self.feedback, step)
        if self._remembers and isinstance(bucket.message, Message):
            self._remember(bucket, bucket.message, refused)
        return refused

    def _remember(self, bucket: Bucket, message: Message, refused: Container[Slot]) -> None:
        """Keep what is about to be sent: unless it is gathered, a copy, since ranks' messages are summed in place."""
        for slot, payload in zip(bucket.slots, message.payloads, strict=True):
            if slot.is_taken and slot not in refused and self.feedback.leaves_residual(slot.name):
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
            if not bucket.is_compressed:
                if not complete:
                    return
                self.compress(bucket, step)
            assert bucket.message is not None
            nbytes = bucket.message.gathered_nbytes(self.feedback.communicator.world_size)
            if nbytes and self._gathered_bytes and self._gathered_bytes + nbytes > self.gathered_limit:
                return
            self.feedback.send(bucket.message)
            self._under_way.append((bucket, nbytes))
            self._gathered_bytes += nbytes
            self._launched += 1
        if complete:
            self._end_rounds()

    def _end_rounds(self) -> None:
        waiting = [bucket for bucket, _ in self._under_way if isinstance(bucket.message, Round)]
        while waiting:
            for bucket in waiting:
                assert isinstance(bucket.message, Round)
                bucket.message = self.feedback.end_round(bucket.message)
                if self._remembers and isinstance(bucket.message, Message):
                    self._remember(bucket, bucket.message, ())
                self.feedback.send(bucket.message)
            waiting = [bucket for bucket in waiting if isinstance(bucket.message, Round)]

    def next(self) -> Bucket | None:
        """Return the bucket whose message is the oldest under way, if any is."""
        return self._under_way[0][0] if self._under_way else None

    def receive(self) -> list[Slot]:
        """Receive the oldest message into the `.grad` of its parameters, and return the slots of these.

        A tensor without a gradient on this rank is parked until `settle` asks the other ranks. The message's share of
        the bytes that may be under way is released.
        """
        bucket, nbytes = self._under_way.popleft()
        self._gathered_bytes -= nbytes
        taken = [slot for slot in bucket.slots if slot.is_taken]
        self._parked += [slot for slot in bucket.slots if not slot.is_taken]
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
        This is the step's last collective, since a rank may still be launching the others. UsageError, on all ranks, if
        `step` is not its number on each.
        """
        presence = self.agree(flag, step)
        if not self.flagged and self.feedback.momentum is not None:  # one that is not finite is present nowhere
            refuse_partly_absent(self.slots, presence, self.world.world_size)
        found = [slot for slot in self._parked if presence[slot.index]]
        for slot in self._parked:
            if presence[slot.index]:
                self.deliver([slot])
            else:
                slot.parameter.grad = None  # zeros that one rank has and another has not would drive them apart
        return found

    def agree(self, flag: bool, step: int) -> list[int]:
        """Return how many ranks have a gradient, of each slot, and note whether any gave a `flag`.

        Warns if digests of parameters differ. Raises UsageError, on all ranks, if `step` differs between them.
        """
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
            indices = [slot.index for slot in arrived] + [s.index for s in reversed(self.slots) if not s.is_taken]
            order: Tensor = torch.tensor(indices, device=self.world.control_device)
            self.world.broadcast_(order, "resireduce.order")
            self._order = [self.slots[index] for index in order.tolist()]
            self.buckets = self._arranged(self.buckets)
            self._order_is_learnt, self._next = True, None
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
