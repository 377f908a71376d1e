"""Which tensors share a message, and the order of messages: learnt in the first step, and the same on all ranks."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.step.buckets import BUCKET_BYTES, arrange, buckets
from resireduce.step.merge import merged
from resireduce.step.receive import ReceiveQueue
from resireduce.step.slot import Slot


class OrderedQueue(ReceiveQueue):
    """Knows every tensor's message, and an order of messages that all ranks share.

    In the first step the order is the reverse of the model's; from the second step on it is the order in which rank 0's
    gradients arrived in the first step.

    Dense tensors are in buckets, which never change: how an all-reduce rounds an element depends on its place in the
    message. The others may be merged into messages of several, which leave when the last tensor is there.

    Args:
        slots: one for each parameter.
        feedback: compresses and averages.
        levels: the ranks of this one's node, and of its place in all nodes.
        merge: which tensors travel together, as in `resireduce.distribute`.
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, levels: Levels, merge: object):
        super().__init__(slots, feedback, levels)
        self.bucket_bytes = sum(slot.nbytes for slot in slots) if merge == "hybrid" else BUCKET_BYTES
        """Largest message, in bytes, of dense tensors that may share one."""
        self.buckets, self._order = list(buckets(reversed(slots), self.bucket_bytes)), list(reversed(slots))
        """Lists of tensors that always share a message, often of one tensor, in the order of arrival."""
        self._order_is_learnt = False
        self._bucket_of = {slot: bucket for bucket in self.buckets for slot in bucket}
        self._next: dict[Slot, Slot] | None = None  # each slot with the next that has a residual
        self.merge(merge)

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
