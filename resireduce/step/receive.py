"""Receives messages: as averages, whole or in slices; those for which no rank had a gradient are dropped."""

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import UsageError, warn
from resireduce.sending.message import Message
from resireduce.sending.parts import PartedMessage
from resireduce.step.drift import DRIFTED
from resireduce.step.gather import Gather
from resireduce.step.own_memory import laid_out
from resireduce.step.slot import Slot
from resireduce.timeline import Timeline, timed

OTHER_STEP = (
    "this step is number {step} here, and another one on other ranks, which make other random choices: "
    "load_residual_state_dict(...), redistribute(...) or start_at(...) was called on some ranks alone, or with states "
    "of several steps. Call it on all, with what they saved in one step: build model and optimizer anew, from a "
    "checkpoint"
)


class ReceiveQueue:
    """Messages that are under way, received in the order of their launch.

    With two `levels` the averages are then gathered within the node.

    Args:
        slots: one for each parameter.
        feedback: compresses and averages.
        levels: the ranks of this one's node, and of its place in all nodes.
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, levels: Levels):
        self.slots, self.feedback, self.world = slots, feedback, levels.world
        self._gather = None if levels.node is None else Gather(levels.node, feedback)
        self._under_way: deque[Slot] = deque()
        self._parked: list[Slot] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._bucket_of: dict[Slot, list[Slot]] = {}  # those that share a message whatever is merged
        self.keeps_messages = False
        """Whether a message may be delivered again."""
        self.copies_together = False
        """Whether averages that came in one message are put into `.grad` by one copy, when the last one of them has
        been received, or in `settle`."""
        self.in_slices: frozenset[Slot] = frozenset()
        """Slots whose averages are not put into `.grad`, but read in slices."""
        self.flagged = False
        """Whether any rank, this one included, has flagged the last step."""
        self.digest = 0
        """The digest of this rank's parameters as they were before the step; 0 in a step that compares none."""

    @property
    def timeline(self) -> Timeline | None:
        """The timeline of the pipeline, if it has one."""
        return self.feedback.timeline

    def next(self) -> Slot | None:
        """Return the slot whose message is the oldest under way, if any is."""
        return self._under_way[0] if self._under_way else None

    def receive(self) -> Slot | None:
        """Receive the oldest message into its parameter's `.grad`, and return its slot; None if it is parked.

        A tensor without a gradient on this rank is parked, undecompressed, until `settle` asks the other ranks; if its
        message comes in parts, it is parked only if no rank has a gradient.
        """
        slot = self._under_way.popleft()
        taken = slot.is_taken or (isinstance(slot.message, PartedMessage) and slot.message.parts.somewhere)
        if taken:
            self.deliver(slot)
        else:
            self._parked.append(slot)
        if self._copies and slot is self._bucket_of[slot][-1]:
            self._copy()
        return slot if taken else None

    def _copy(self) -> None:
        """Copy averages into `.grad`, each into the tensor that is there."""
        if self._copies:
            torch._foreach_copy_([kept for kept, _ in self._copies], [average for _, average in self._copies])
        self._copies = []

    def deliver(self, slot: Slot) -> None:
        """Decompress the message of `slot` into its parameter's `.grad`, unless it will be read in slices."""
        assert isinstance(slot.message, Message | PartedMessage)
        if slot in self.in_slices:
            return
        kept = slot.parameter.grad
        if self._gather is not None:
            assert isinstance(slot.message, Message)
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

    def averages(self, slot: Slot, rows: Sequence[slice]) -> Iterator[Tensor]:
        """Yield the average for each slice in `rows` of `slot`, laid out like the parameter; its message has come.

        It is decompressed slice by slice, or as a whole before the first if its compressor cannot do that.
        """
        assert isinstance(slot.message, Message | PartedMessage)
        if not slot.message.compressor.cuts:
            whole = self.feedback.receive(slot.message)
            yield from (laid_out(whole[part], slot.parameter[part]) for part in rows)
            return
        shape = slot.parameter.shape[1:]
        borders = [0, *(part.stop * shape.numel() for part in rows)]
        is_plain, places = slot.parameter.is_contiguous(), iter(rows)
        for flat in self.feedback.receive_parts(slot.message, borders):
            part, average = next(places), flat.view(-1, *shape)
            if not is_plain:
                average = laid_out(average, slot.parameter[part])
            del flat  # before the next is made
            yield average
            del average

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


def refuse_partly_absent(slots: Sequence[Slot], presence: Sequence[int], world_size: int) -> None:
    """Raise UsageError, on all ranks, if momentum is corrected and some of `world_size` ranks had no gradient of one of
    `slots`: their velocity would neither be sent nor decay. `presence`: how many ranks had one, of each."""
    some = next((slot for slot in slots if 0 < presence[slot.index] < world_size), None)
    if some is not None:
        raise UsageError(
            f"{some.name!r} had a gradient on some ranks and none on others, whose velocity of it would not be "
            "averaged: use compressor='dgc' with the optimizer's own momentum, or give it a gradient of zero"
        )
