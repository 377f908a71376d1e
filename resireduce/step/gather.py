"""Averages within a node, on their way back: slices are gathered, so that every rank has the whole."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.exactly import exactly
from resireduce.sending.message import Message
from resireduce.step.slot import Slot
from resireduce.timeline import Timeline, timed


class Gather:
    """Gathers the slices of averages that the ranks of a node have received from other nodes.

    All its ranks ask for the same averages in the same order. Those of small tensors travel in the same messages as
    their gradients did.

    Args:
        node: the ranks of this rank's node.
        feedback: receives what comes from other nodes.
    """

    def __init__(self, node: Communicator, feedback: ErrorFeedback):
        self.node, self.feedback = node, feedback

    @property
    def timeline(self) -> Timeline | None:
        """The timeline of the pipeline, if it has one."""
        return self.feedback.timeline

    @exactly
    def average(self, slot: Slot, message: Sequence[Slot]) -> Tensor:
        """Return the average of `slot`, dense and whole; all averages of its `message` are gathered at once."""
        if slot.average is None:
            own = [self._own(one) for one in message]
            rows = self._gathered(own[0] if len(own) == 1 else torch.cat(own), slot.name)
            start = 0
            for one in message:
                assert one.slices is not None
                stop = start + one.slices.width
                one.average = one.slices.joined(rows[:, start:stop])
                start = stop
        average, slot.average = slot.average, slot.average if len(message) > 1 else None
        assert average is not None
        return average

    def _own(self, slot: Slot) -> Tensor:
        """Return this rank's slice of the average as a row of a message."""
        assert slot.slices is not None and isinstance(slot.message, Message)
        return slot.slices.padded(self.feedback.receive(slot.message))

    @timed("communicate")
    def _gathered(self, own: Tensor, name: str) -> Tensor:
        """Return the rows of all ranks of the node, [ranks, size of `own`]."""
        return self.node.gather(own, f"resireduce.average.{name}").wait().view(self.node.world_size, -1)
