"""All-reduces in two halves: a reduce-scatter in the backward pass, and an all-gather in the next forward pass.

Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce Pipelining", ICDCS 2023.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from resireduce.comm.base import Handle, Polled
from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.exactly import exactly
from resireduce.payload import Payload
from resireduce.settings import DEAR_BYTES, dear_bytes
from resireduce.step.launch import LaunchQueue
from resireduce.step.slot import Slot
from resireduce.timeline import timed


@dataclass
class Half:
    """A message after its reduce-scatter: all ranks' parts, concatenated, are its averages and padding zeros."""

    slots: list[Slot]
    """The slots of the averages, in the order in which they lie."""
    part: Tensor
    """The elements of the sum that this rank gets, 1-D; equally many on all ranks."""

    def placed(self) -> Iterator[tuple[Slot, int]]:
        """Yield each slot with the place of its first element in the average."""
        start = 0
        for slot in self.slots:
            yield slot, start
            start += slot.parameter.numel()


class HalvesQueue(LaunchQueue):
    """Launches the reduce-scatter of each message as soon as all of its gradients have come.

    Messages never change; their launch order is learnt as in `LaunchQueue`.

    Args:
        slots, feedback, levels: as for `LaunchQueue`.
        merge: "dear", or "dear-BYTES".
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, levels: Levels, merge: object):
        self._scattered: deque[tuple[list[Slot], Polled[Tensor]]] = deque()
        super().__init__(slots, feedback, 0, levels, merge=merge)

    def merge(self, merge: object) -> None:
        """Send tensors together in groups of modules, limited by the bytes that `merge` gives."""
        self.messages = self._in_order(in_forward_order(self.slots, dear_bytes(merge) or DEAR_BYTES))

    def _in_order(self, messages: Iterable[list[Slot]]) -> list[list[Slot]]:
        """Return `messages` in the order in which their last gradients come."""
        place = {slot: place for place, slot in enumerate(self._order)}
        return sorted(messages, key=lambda message: max(place[slot] for slot in message))

    @timed("communicate")
    @exactly
    def _send_message(self, message: list[Slot]) -> None:
        ranks = self.feedback.communicator
        parts = [slot.payload.buffer for slot in message if isinstance(slot.payload, Payload)]
        padding = -sum(part.numel() for part in parts) % ranks.world_size
        buffer = torch.cat([*parts, parts[0].new_zeros(padding)])
        buffer.mul_(1 / ranks.world_size)
        self._scattered.append((message, ranks.scatter_sum(buffer, message[0].name)))
        for slot in message:
            slot.payload = slot.hidden = None  # its memory can be freed: averages come in new memory

    @timed("communicate")
    def halves(self) -> list[Half]:
        """Wait for the sums of all messages of the step, and return them in launch order."""
        found = []
        while self._scattered:
            slots, sums = self._scattered.popleft()
            found.append(Half(slots, sums.wait()))
            del sums  # it is as large as the message
        return found

    @timed("communicate")
    def gather(self, half: Half) -> Handle[Tensor]:
        """Launch the second half of a message, which gathers all ranks' parts."""
        return self.feedback.communicator.gather(half.part, f"{half.slots[0].name}.gather")

    def settle(self, flag: bool, step: int) -> list[Slot]:
        """Return the slots that had a gradient on any rank, equal on all; `flag` and `step` as in `LaunchQueue`."""
        presence = self._agree(flag, step)
        return [slot for slot in self.slots if presence[slot.index]]


def in_forward_order(slots: Iterable[Slot], limit_bytes: int) -> list[list[Slot]]:
    """Return `slots` in messages: modules in the order of the model, which is mostly that of its forward pass.

    A message is closed where the next module would make it `limit_bytes` or more, or is of another kind.
    """
    messages: list[list[Slot]] = []
    filled = 0
    for _, module in groupby(slots, key=lambda slot: (slot.name.rpartition(".")[0], slot.kind[:2])):
        own = list(module)
        nbytes = sum(slot.nbytes for slot in own)
        if not messages or filled + nbytes >= limit_bytes or not own[0].is_like(messages[-1][0]):
            messages.append([])
            filled = 0
        messages[-1] += own
        filled += nbytes
    return messages
