"""Messages under way for a hook of a wrapper, which wants its gradients back before `backward()` returns."""

from collections import deque

from torch import Tensor

from resireduce.error_feedback import ErrorFeedback
from resireduce.payload import Payload
from resireduce.sending.message import Message, Round


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

    def send(self, made: list[Payload | Round], name: str, targets: list[Tensor]) -> None:
        """Launch one message of the payloads `made`, called `name`, or the first round of one.

        Each average goes into the corresponding one of `targets`.
        """
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
