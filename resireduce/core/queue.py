"""The queue of messages: which tensors share one, in which order they leave, and how they come back."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from resireduce.comm.nodes import Levels
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Round, packed_nbytes
from resireduce.core.payload import Payload
from resireduce.core.slot import Slot, laid_out
from resireduce.errors import UsageError, warn
from resireduce.node import Gather
from resireduce.timeline import Timeline, timed
from resireduce.watchers import DRIFTED

# --- Which tensors share a message (small dense ones in buckets, others as `merge` says), and the order of messages ---


BUCKET_BYTES = 1 << 18
"""Small dense tensors (biases, norms) travel together in messages of up to this size: each message costs time."""


def buckets(order: Iterable[Slot], limit_bytes: int = BUCKET_BYTES) -> Iterator[list[Slot]]:
    """Cut `order` into messages: each tensor has its own, but small ones of one kind share one.

    Such a message holds at most `limit_bytes`.
    """
    waiting: list[Slot] = []
    for slot in order:
        if not slot.small:
            yield [slot]
            continue
        if waiting and (not slot.is_like(waiting[0]) or sum(s.nbytes for s in waiting) + slot.nbytes > limit_bytes):
            yield waiting
            waiting = []
        waiting.append(slot)
    if waiting:
        yield waiting


def arrange(messages: Iterable[list[Slot]], order: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yield `messages` in the order in which tensors, coming in `order`, complete them; a message of small tensors
    leaves when the next one begins, as in `buckets`.

    The contents of a message never change: with three ranks or more, how an all-reduce rounds an element depends on its
    place in the message, and training that resumes from a checkpoint begins with the first order again.
    """
    place = {slot: message for message in messages for slot in message}
    missing = {id(message): len(message) for message in place.values()}
    ready: list[list[Slot]] = []
    for slot in order:
        message = place[slot]
        missing[id(message)] -= 1
        complete = [] if missing[id(message)] else [message]
        if slot.small:
            yield from ready
            ready = complete
        else:
            yield from complete
    yield from ready


def merged(slots: Sequence[Slot], merge: Any, feedback: ErrorFeedback) -> list[list[Slot]]:
    """Return the messages of `slots`, tensors that are compressed, in the order in which they arrive.

    merge: as in `resireduce.distribute`, checked; names of other tensors in its lists are ignored. A tensor that no
    list names has a message of its own, and so have all tensors before a rule has decided. `feedback` says how many
    bytes are sent of each.
    """
    if isinstance(merge, str | None):
        return [*_alike(slots)] if merge in ("one", "hybrid") else [[slot] for slot in slots]
    if isinstance(merge, int):
        return [*_filled(slots, merge, feedback)]
    by_name = {slot.name: slot for slot in slots}
    listed = [[by_name.pop(name) for name in names if name in by_name] for names in merge]
    return [message for names in listed for message in _alike(names)] + [[slot] for slot in by_name.values()]


def planned_payload(slot: Slot, feedback: ErrorFeedback) -> Payload:
    """Return the payload of `slot` by `feedback` in the first step after warm-up, without storage."""
    like = torch.empty(slot.template.shape, dtype=slot.template.dtype, device="meta")
    return feedback.later_compressor_of(slot.name).compress(like, slot.name, feedback.warm_up_steps)


def _alike(slots: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yield the longest runs of tensors of one kind."""
    message: list[Slot] = []
    for slot in slots:
        if message and not slot.is_like(message[0]):
            yield message
            message = []
        message.append(slot)
    if message:
        yield message


def _filled(slots: Iterable[Slot], limit_bytes: int, feedback: ErrorFeedback) -> Iterator[list[Slot]]:
    """Yield messages of `limit_bytes` at most, or of one tensor that is larger."""
    for run in _alike(slots):
        message, filled = [run[0]], planned_payload(run[0], feedback).nbytes
        for slot in run[1:]:
            nbytes = planned_payload(slot, feedback).nbytes
            if filled + nbytes > limit_bytes:
                yield message
                message, filled = [], 0
            message.append(slot)
            filled += nbytes
        yield message


OTHER_STEP = (
    "this step is number {step} here, and another one on other ranks, which make other random choices: "
    "load_residual_state_dict(...), redistribute(...) or start_at(...) was called on some ranks alone, or with states "
    "of several steps. Call it on all, with what they saved in one step: build model and optimizer anew, from a "
    "checkpoint"
)


class LaunchQueue:
    """Launches every tensor's message in every step, in an order that all ranks share, and receives in that order.

    In the first step the order is the reverse of the model's; from the second step on it is the order in which rank 0's
    gradients arrived in the first step.

    Dense tensors are in buckets, which never change: how an all-reduce rounds an element depends on its place in the
    message. The others may be merged into messages of several, which leave when the last tensor is there.

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
        self._gather = None if levels.node is None else Gather(levels.node, feedback)
        self._under_way: deque[Slot] = deque()
        self._parked: list[Slot] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        self.keeps_messages = False
        """Whether a message may be delivered again."""
        self.copies_together = False
        """Whether averages that came in one message are put into `.grad` by one copy, when the last one of them has
        been received, or in `settle`."""
        self.flagged = False
        """Whether any rank, this one included, has flagged the last step."""
        self.digest = 0
        """The digest of this rank's parameters as they were before the step; 0 in a step that compares none."""
        self.bucket_bytes = sum(slot.nbytes for slot in slots) if merge == "hybrid" else BUCKET_BYTES
        """Largest message, in bytes, of dense tensors that may share one."""
        self.buckets, self._order = list(buckets(reversed(slots), self.bucket_bytes)), list(reversed(slots))
        """Lists of tensors that always share a message, often of one tensor, in the order of arrival."""
        self._order_is_learnt = False
        self._bucket_of = {slot: bucket for bucket in self.buckets for slot in bucket}
        self._next: dict[Slot, Slot] | None = None  # each slot with the next that has a residual
        self.merge(merge)
        self.gathered_limit, self._remembers = gathered_limit, remembers
        self._step_is_agreed = self.world.world_size == 1 or not feedback.varies
        self._restart()

    def _restart(self) -> None:
        self._launched = self._gathered_bytes = 0
        self._gathered_until: dict[Slot, int] = {}  # bytes that are received with this slot, the last of its message
        self._under_way.clear()
        self._parked.clear()
        self._copies.clear()
        self._in_rounds: list[Slot] = []  # whose message is a round, in the order of their launch

    @property
    def compressed(self) -> list[Slot]:
        """Tensors that are compressed, once warm-up is over, in the order of arrival."""
        return [slot for bucket in self.buckets for slot in bucket if self.feedback.merges(slot.name)]

    def merge(self, merge: object) -> None:
        """Send tensors together as `merge`, as in `resireduce.distribute`, says; call it between two steps only."""
        together = merged(self.compressed, merge, self.feedback)
        dense = [bucket for bucket in self.buckets if not self.feedback.merges(bucket[0].name)]
        self.messages = self._in_order([*together, *dense])
        """Which tensors travel together, in the order of their launch."""

    def _in_order(self, messages: Iterable[list[Slot]]) -> list[list[Slot]]:
        return list(arrange(messages, self._order))

    def learn_order(self, arrived: Sequence[Slot]) -> None:
        """Take over rank 0's order, after the first step: `arrived` are the slots of this rank's gradients, in turn."""
        if self._order_is_learnt:
            return
        indices = [slot.index for slot in arrived] + [s.index for s in reversed(self.slots) if not s.is_taken]
        order: Tensor = torch.tensor(indices, device=self.world.control_device)
        self.world.broadcast_(order, "resireduce.order")
        self._order = [self.slots[index] for index in order.tolist()]
        self.buckets = list(arrange(self.buckets, self._order))
        self.messages = self._in_order(self.messages)
        self._order_is_learnt, self._next = True, None

    def prefetch_after(self, slot: Slot) -> None:
        """Start copying the residual that will be needed next, after that of `slot`, whose gradient has come."""
        if self._next is None:
            slots = [slot for bucket in self.buckets for slot in bucket]
            self._next = dict(pairwise([slot for slot in slots if self.feedback.keeps_residual(slot.name)]))
        if slot in self._next:
            self.feedback.residual.prefetch(self._next[slot].name)

    def launch(self, step: int, complete: bool = False) -> None:
        """Launch what is ready. `complete`: no more gradients will come, so the missing ones are sent as zeros."""
        if not self._may_begin(step, complete):
            return
        while self._launched < len(self.messages):
            if not complete and self.feedback.communicator.would_block:
                return  # another rank may be in a collective of the user's own, and reach this one only in step()
            message = self.messages[self._launched]
            # This runs for each gradient, so the tensor that comes last is checked first.
            if not complete and (message[-1].payload is None or any(slot.payload is None for slot in message)):
                return
            for slot in message:
                if slot.payload is None:
                    slot.payload = self.feedback.absent(slot.parameter, slot.name, step)
            nbytes = self.gathered_nbytes(message, [slot.payload for slot in message if slot.payload])
            if nbytes and self._gathered_bytes and self._gathered_bytes + nbytes > self.gathered_limit:
                return
            self._send_message(message)
            self._under_way.extend(message)
            self._gathered_until[message[-1]] = nbytes
            self._gathered_bytes += nbytes
            self._launched += 1
        if complete:
            self._end_rounds()

    def _may_begin(self, step: int, complete: bool) -> bool:
        """Return False if messages depend on the step number, and ranks have not compared theirs: they do once, at the
        end of the first step, when it is `complete`.

        Until then messages wait. Raises UsageError, on all ranks, if `step` is not the same on each.
        """
        if complete and not self._step_is_agreed:
            self._sums([], step)
            self._step_is_agreed = True
        return self._step_is_agreed

    def _send_message(self, message: list[Slot]) -> None:
        apart = not message[0].small and not self.feedback.packs(message[0].name)
        for together in [[slot] for slot in message] if apart else [message]:
            self._send(together)

    def _send(self, together: list[Slot]) -> None:
        made = [slot.payload for slot in together if slot.payload]
        for slot in together if self._remembers else ():
            if slot.is_taken and self.feedback.leaves_residual(slot.name):
                slot.remember_sent(self.feedback.gathers(slot.name))
        for slot, message in zip(together, self.feedback.send(made, *(slot.name for slot in together)), strict=True):
            slot.payload, slot.message = None, message
            if isinstance(message, Round):
                self._in_rounds.append(slot)

    def _end_rounds(self) -> None:
        while self._in_rounds:
            waiting, self._in_rounds = self._in_rounds, []
            for slot in waiting:
                assert isinstance(slot.message, Round) and not self.feedback.gathers(slot.name)
                slot.payload = self.feedback.end_round(slot.message)
                self._send([slot])

    def gathered_nbytes(self, message: Sequence[Slot], payloads: Sequence[Payload | Round]) -> int:
        """Return the bytes of all ranks' `payloads` of a `message` if it is gathered; 0 if it is summed in place."""
        if isinstance(payloads[0], Round) or not self.feedback.gathers(message[0].name):
            return 0
        equal_sizes = self.feedback.compressor_of(message[0].name).equal_sizes
        nbytes = packed_nbytes([payload.nbytes for payload in payloads if isinstance(payload, Payload)], equal_sizes)
        return nbytes * self.feedback.communicator.world_size

    @property
    def timeline(self) -> Timeline | None:
        """The timeline of the pipeline, if it has one."""
        return self.feedback.timeline

    def next(self) -> Slot | None:
        """Return the slot whose message is the oldest under way, if any is."""
        return self._under_way[0] if self._under_way else None

    def receive(self) -> Slot | None:
        """Receive the oldest message into its parameter's `.grad`, and return its slot; None if it is parked.

        A tensor without a gradient on this rank is parked, undecompressed, until `settle` asks the other ranks. The
        message's share of the bytes that may be under way is released.
        """
        slot = self._under_way.popleft()
        self._gathered_bytes -= self._gathered_until.pop(slot, 0)
        if slot.is_taken:
            self.deliver(slot)
        else:
            self._parked.append(slot)
        if self._copies and slot is self._bucket_of[slot][-1]:
            self._copy()
        return slot if slot.is_taken else None

    def _copy(self) -> None:
        """Copy averages into `.grad`, each into the tensor that is there."""
        if self._copies:
            torch._foreach_copy_([kept for kept, _ in self._copies], [average for _, average in self._copies])
        self._copies = []

    def deliver(self, slot: Slot) -> None:
        """Decompress the message of `slot` into its parameter's `.grad`."""
        assert isinstance(slot.message, Message)
        kept = slot.parameter.grad
        if self._gather is not None:
            average = self._gather.average(slot, self._bucket_of[slot])
            slot.parameter.grad = laid_out(average, slot.parameter) if kept is None else kept.copy_(average)
        elif kept is None:
            slot.parameter.grad = laid_out(self.feedback.receive(slot.message), slot.parameter)
        elif self.copies_together and slot.dense and len(self._bucket_of[slot]) > 1:
            self._copies.append((kept, self.feedback.receive(slot.message)))
        elif kept.is_contiguous():
            self.feedback.receive(slot.message, into=kept)
        else:
            kept.copy_(self.feedback.receive(slot.message))
        if not self.keeps_messages:
            slot.message = slot.average = None

    def settle(self, flag: bool, step: int) -> list[Slot]:
        """Agree on the tensors that had no gradient here: averages are delivered if another rank had one, else dropped.

        Agree also on whether to go on: `flagged` is whether any rank gave a `flag`, for a gradient that cannot be used.
        This is the step's last collective, since a rank may still be launching the others. UsageError, on all ranks, if
        `step` is not its number on each.
        """
        presence = self._agree(flag, step)
        if not self.flagged and self.feedback.momentum is not None:  # one that is not finite is present nowhere
            refuse_partly_absent(self.slots, presence, self.world.world_size)
        found = [slot for slot in self._parked if presence[slot.index]]
        for slot in self._parked:
            if slot in found:
                self.deliver(slot)
            else:
                slot.parameter.grad = None  # zeros that one rank has and another has not would drive them apart
        self._copy()
        return found

    @timed("communicate")
    def _agree(self, flag: bool, step: int) -> list[int]:
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

    def finish(self, arrived: list[Slot]) -> None:
        """End the step in which this rank's gradients came in the order `arrived`."""
        self.learn_order(arrived)
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
