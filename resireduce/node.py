"""With two levels: gradients on their way out of a node's ranks, and averages on their way back."""

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Handle
from resireduce.core.bucket import Bucket, Slot, Stage
from resireduce.core.feedback import ErrorFeedback, exactly
from resireduce.core.messages import Message
from resireduce.core.step import Flat, LaunchQueue, Streamed
from resireduce.errors import NonFiniteGradient

PATIENCE_SECONDS = 1.0
"""How long a backward pass waits for another rank of the node while it holds too many bytes."""
POLL_SECONDS = 0.0005


class ByNodes(Flat):
    """The route of gradients on two levels, within a node and between nodes, and of averages on their way back.

    It sums gradients over the ranks of a node, in their own precision, and gives each rank its slice of the mean.

    Messages leave in the order that all ranks share. A gradient is held until its message has left and all ranks of the
    node have sent theirs. When more than `held_limit` bytes of them are held, the backward pass waits for the oldest.
    But another rank may reach that message only in `step()`, and be in a collective of the user's own that waits for
    this rank. So it waits in vain at most once, for PATIENCE_SECONDS, and from then on holds more bytes instead.
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, node: Communicator, held_limit: int):
        super().__init__(feedback)
        self.slots, self.node, self.held_limit = slots, node, held_limit
        self._is_patient = True  # has never waited in vain
        self._launched = 0
        self._under_way: deque[tuple[Bucket, Handle[Tensor]]] = deque()
        self._unknown: dict[Slot, Tensor] = {}  # means of tensors without a gradient here; other ranks may have one

    def check_(self, grad: Tensor, slot: Slot) -> None:
        """Look for NaN before the gradient of `slot` is summed with others."""
        self.feedback.finiteness.check_(grad, slot.name)

    def advance(self, slot: Slot, queue: LaunchQueue, step: int) -> None:
        """Launch the next buckets whose gradients have all come, in order; take slices that have come."""
        for bucket in queue.buckets[self._launched :]:
            if any(slot.gradient is None for slot in bucket.slots):
                break
            self.launch(bucket)
        while self._under_way and self.has_come(self._under_way[0][1]):
            self._arrive(queue, step)

    def complete(self, queue: LaunchQueue, step: int) -> None:
        """Launch the rest of the buckets, with zeros for what is missing, and take all remaining slices.

        By then all ranks are in `step()`, or will reach it, so that waiting is safe.
        """
        for bucket in queue.buckets[self._launched :]:
            for slot in bucket.slots:
                if slot.gradient is None:
                    slot.gradient = torch.zeros_like(slot.parameter, memory_format=torch.contiguous_format).detach_()
            self.launch(bucket)
            while len(self._under_way) > 1:  # one at a time, so that few zeros are alive
                self._arrive(queue, step)
        while self._under_way:
            self._arrive(queue, step)
        present = self.agree()
        for slot, mean in self._unknown.items():
            if present[slot.index]:  # on other ranks of the node
                slot.stage = Stage.TAKEN
                queue.arrived.append(slot)
            self._take(slot, mean if present[slot.index] else None, queue, step)
        self._launched, self._unknown = 0, {}

    @exactly
    def launch(self, bucket: Bucket) -> None:
        """Launch the message of `bucket`, all of whose gradients are there."""
        rows = [slot.slices.spread(slot.gradient) for slot in bucket.slots]  # type: ignore[union-attr, arg-type]
        for slot in bucket.slots:
            slot.gradient = None
        whole = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
        name = f"resireduce.node.{bucket.slots[0].name}"
        self._under_way.append((bucket, self.node.reduce_scatter(whole.view(-1), name)))
        self._launched += 1

    def has_come(self, handle: Handle[Tensor]) -> bool:
        """Return whether the oldest message, that of `handle`, has come from all ranks; wait while too much is held."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not handle.is_ready():
            if not self._is_patient or sum(bucket.nbytes for bucket, _ in self._under_way) <= self.held_limit:
                return False
            self._is_patient = time.monotonic() < deadline
            time.sleep(POLL_SECONDS)
        return True

    def _arrive(self, queue: LaunchQueue, step: int) -> None:
        """Take the slices of the oldest message, except those of which no rank is known yet to have a gradient."""
        bucket, handle = self._under_way.popleft()
        row = self.wait(handle)
        del handle  # and the gradient with it
        for slot, part in zip(bucket.slots, row.split(_widths(bucket)), strict=True):
            own = slot.slices.own(part, slot.place)  # type: ignore[union-attr]
            if slot.is_taken:
                self._take(slot, own, queue, step)
            else:
                self._unknown[slot] = own

    def _take(self, slot: Slot, mean: Tensor | None, queue: LaunchQueue, step: int) -> None:
        """Take this rank's slice of the `mean` over its node; None if no rank there has a gradient. Zeros are sent to
        other nodes, if a sum of finite gradients has overflowed."""
        try:
            if mean is not None:
                self.feedback.finiteness.check(mean, slot.name)
        except NonFiniteGradient as error:
            mean, queue.refused = None, queue.refused or error
        slot.gradient, slot.is_ready = mean, True
        queue.compress_ready(slot, step)
        queue.launch(step)

    def wait(self, handle: Handle[Tensor]) -> Tensor:
        """Return the mean whose sum `handle` brings."""
        return handle.wait().mul_(1 / self.node.world_size)

    def agree(self) -> list[int]:
        """Return how many ranks of the node have a gradient, for each slot."""
        mine = torch.tensor([int(slot.is_taken) for slot in self.slots], device=self.node.control_device)
        return self.node.all_reduce(mine, "resireduce.node.presence").wait().tolist()

    # --- averages on their way back: slices are gathered, so that every rank has the whole ---

    @exactly
    def averages(self, slots: Sequence[Slot], bucket: Bucket, lifetime: Streamed) -> list[Tensor]:
        """Return the averages of `slots` of a `bucket`, dense and whole: all of the bucket are gathered at once."""
        if any(slot.average is None for slot in slots):
            assert isinstance(bucket.message, Message)
            received = self.feedback.receive(bucket.message, range(len(bucket.slots)), bucket.message.room)
            own = [slot.slices.padded(one) for slot, one in zip(bucket.slots, received, strict=True)]  # type: ignore[union-attr]
            del received
            rows = self.gathered(own[0] if len(own) == 1 else torch.cat(own), bucket.slots[0].name)
            for slot, part in zip(bucket.slots, rows.split(_widths(bucket), dim=1), strict=True):
                slot.average = slot.slices.joined(part)  # type: ignore[union-attr]
        found = [slot.average for slot in slots]
        for slot in slots:
            slot.average = None
        return [one for one in found if one is not None]

    def gathered(self, own: Tensor, name: str) -> Tensor:
        """Return the rows of all ranks of the node, [ranks, size of `own`]."""
        return self.node.gather(own, f"resireduce.average.{name}").wait().view(self.node.world_size, -1)


def _widths(bucket: Bucket) -> list[int]:
    """Return how many elements each tensor of `bucket` has in a rank's row of a message."""
    return [slot.slices.width for slot in bucket.slots if slot.slices is not None]
