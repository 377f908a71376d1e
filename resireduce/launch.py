"""In which order messages leave and come back, and how many bytes of them are under way at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resireduce.error_feedback import ErrorFeedback, Message
from resireduce.payload import Payload


@dataclass(eq=False)
class Slot:
    """One parameter's way through a step."""

    index: int
    name: str
    parameter: nn.Parameter
    dense: bool
    """Whether its payload is as large as its gradient."""
    passes: int = 0
    """Backward passes since the last step."""
    present: bool = False
    """Whether this rank has taken a gradient of it in this step."""
    payload: Payload | None = None
    """This rank's message, from its compression to its launch."""
    message: Message | None = None
    """The message under way, from its launch to its receipt."""

    @property
    def nbytes(self) -> int:
        """Bytes of its dense gradient."""
        return self.parameter.nbytes


class LaunchQueue:
    """Launches every tensor's message in every step, in one order that all ranks share, and receives in that order.

    Before the first step the order is the reverse of the model's; from the second step on it is the order in which
    rank 0's gradients arrived in the first. Messages that are gathered cost world size x payload bytes from launch to
    receipt: beyond `gathered_limit` bytes of them the next waits (a single larger one goes alone).
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, gathered_limit: int):
        self.slots, self.feedback, self.gathered_limit = slots, feedback, gathered_limit
        self._order, self._order_is_learnt = list(reversed(slots)), False
        self._restart()

    def _restart(self) -> None:
        self._launched = self._received = self._gathered_bytes = 0
        self._parked: list[Slot] = []

    def launch(self, complete: bool = False) -> None:
        """Launch what is ready. `complete`: no more gradients will come, so the missing ones are sent as zeros."""
        while self._launched < len(self._order):
            slot = self._order[self._launched]
            if slot.payload is None:
                if not complete:
                    return
                slot.payload = self.feedback.absent(slot.parameter, slot.name)
            nbytes = self.gathered_nbytes(slot, slot.payload)
            if nbytes and self._gathered_bytes and self._gathered_bytes + nbytes > self.gathered_limit:
                return
            slot.message, slot.payload = self.feedback.send(slot.payload, slot.name), None
            self._gathered_bytes += nbytes
            self._launched += 1

    def gathered_nbytes(self, slot: Slot, payload: Payload) -> int:
        """Bytes of all ranks' payloads of a tensor, if it is gathered; an all-reduce works in place."""
        return 0 if slot.dense else payload.nbytes * self.feedback.communicator.world_size

    def next(self) -> Slot | None:
        """The tensor whose message is the oldest under way, if any is."""
        return self._order[self._received] if self._received < self._launched else None

    def receive(self) -> Slot:
        """Bring the oldest message back into its parameter's `.grad`.

        A tensor without a gradient on this rank is parked, undecompressed, until `settle` knows of the other ranks.
        """
        slot = self._order[self._received]
        assert slot.message is not None
        self._received += 1
        self._gathered_bytes -= self.gathered_nbytes(slot, slot.message.payload)
        if slot.present:
            self._deliver(slot)
        else:
            self._parked.append(slot)
        return slot

    def _deliver(self, slot: Slot) -> None:
        assert slot.message is not None
        kept = slot.parameter.grad
        if kept is None:
            slot.parameter.grad = self.feedback.receive(slot.message)
        elif kept.is_contiguous():
            self.feedback.receive(slot.message, into=kept)
        else:
            kept.copy_(self.feedback.receive(slot.message))
        slot.message = None

    def settle(self) -> list[Slot]:
        """Agree on the tensors that had no gradient here: delivered if another rank had one, dropped if none had.

        The step's last collective, since a rank may still be launching the others.
        """
        communicator = self.feedback.communicator
        presence = torch.tensor([int(slot.present) for slot in self.slots], device=communicator.control_device)
        communicator.all_reduce(presence, "resireduce.presence").wait()
        found = [slot for slot in self._parked if presence[slot.index]]
        for slot in self._parked:
            if slot in found:
                self._deliver(slot)
            slot.message = None
        return found

    def finish(self, arrived: list[Slot]) -> None:
        """End the step in which this rank's gradients came in the order `arrived`."""
        if not self._order_is_learnt:
            indices = [slot.index for slot in arrived] + [s.index for s in self._order if not s.present]
            order: Tensor = torch.tensor(indices, device=self.feedback.communicator.control_device)
            self.feedback.communicator.broadcast_(order, "resireduce.order")
            self._order, self._order_is_learnt = [self.slots[index] for index in order.tolist()], True
        self._restart()
