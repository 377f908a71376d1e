"""Messages under way for a hook of a wrapper, which wants its gradients back before `backward()` returns."""

from collections import deque
from collections.abc import Callable, Mapping

from torch import Tensor

from resireduce.error_feedback import ErrorFeedback
from resireduce.payload import Payload
from resireduce.sending.message import Message, Round
from resireduce.step.buckets import buckets
from resireduce.step.slot import Slot

Compress = Callable[[Slot, Tensor], Payload | Round]
"""Makes the payload of a gradient, or its first round."""


class UnderWay:
    """Launches messages and receives them, the oldest first, so that gathered ones stay within a limit.

    A gathered message takes world size x payload bytes until it is received. An all-reduced one takes nothing: it is
    summed in its own memory.

    Args:
        feedback: sends and receives.
        limit_bytes: gathered bytes beyond which the oldest messages are received before the next is launched.
    """

    def __init__(self, feedback: ErrorFeedback, limit_bytes: int):
        self._feedback, self._limit_bytes = feedback, limit_bytes
        self.drop()

    def drop(self) -> None:
        """Forget all messages."""
        self._messages: deque[tuple[Message | Round, Tensor]] = deque()  # and where its average belongs
        self._gathered_bytes = 0

    def send(self, views: Mapping[Slot, Tensor], whole: Tensor, compress: Compress) -> None:
        """Launch the messages of gradients, given as `views` of the `whole` that the wrapper holds.

        Each is compressed by `compress`, and its average goes into its view. If nothing can be left unsent, `whole` is
        summed by one all-reduce in its own memory, as without a hook.
        """
        slots = sorted(views, key=lambda slot: -slot.index)  # last to first, as groups of residuals want them
        is_dense = all(not self._feedback.leaves_residual(slot.name) for slot in slots)
        for group in [slots] if is_dense and slots else buckets(slots):
            made, targets = [compress(slot, views[slot]) for slot in group], [views[slot] for slot in group]
            if is_dense:
                made, targets = [Payload.pack(whole, like=whole)], [whole]
            self._launch(made, group[0].name, targets)

    def _launch(self, made: list[Payload | Round], name: str, targets: list[Tensor]) -> None:
        """Launch one message of the payloads `made`, or the first round of one; averages go into `targets`."""
        if self._feedback.gathers(name):
            nbytes = sum(self._gathered_nbytes(payload) for payload in made if isinstance(payload, Payload))
            while self._messages and self._gathered_bytes + nbytes > self._limit_bytes:
                self._receive()
            self._gathered_bytes += nbytes
        self._messages.extend(zip(self._feedback.send(made, name), targets, strict=True))

    def end_rounds(self) -> None:
        """Make the payloads that ranks make in rounds, of all tensors in the same order, and launch them."""
        while any(isinstance(one, Round) for one, _ in self._messages):
            for place, (one, target) in enumerate(self._messages):
                if isinstance(one, Round):
                    (following,) = self._feedback.send([self._feedback.end_round(one)], one.name)
                    self._messages[place] = following, target

    def receive_all(self) -> None:
        """End all rounds, and put all averages into their targets."""
        self.end_rounds()
        while self._messages:
            self._receive()

    def _gathered_nbytes(self, payload: Payload) -> int:
        return payload.nbytes * self._feedback.communicator.world_size

    def _receive(self) -> None:
        message, target = self._messages.popleft()
        assert isinstance(message, Message)
        if message.compressor.collective == "all_gather":
            self._gathered_bytes -= self._gathered_nbytes(message.payload)
        if target.is_contiguous():
            self._feedback.receive(message, into=target)
        else:
            target.copy_(self._feedback.receive(message))
