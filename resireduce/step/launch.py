"""When messages are launched, and how many bytes of them are under way at once."""

from collections.abc import Sequence

import torch

from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.payload import Payload
from resireduce.sending.message import Message, Round
from resireduce.sending.packing import packed_nbytes
from resireduce.step.order import OrderedQueue
from resireduce.step.slot import Slot


class LaunchQueue(OrderedQueue):
    """Launches every tensor's message in every step, in the order of `OrderedQueue`, and receives in that order.

    A gathered message takes world size x payload bytes from launch to receipt: if all of them would take more than
    `gathered_limit`, the next waits. A single larger message goes alone or, with `parts` and a compressor that
    `divides`, in parts that stay within the limit, in `step()`; nothing is launched between these. With two `levels`
    messages carry slices, and the averages are then gathered within the node.

    Where ranks make payloads in rounds, the first round takes a message's place. The others follow in `step()`, after
    the first rounds of all tensors: each round for all tensors in the same order, before any message is received. In
    the backward pass a rank would have to wait there for others, which may be in a collective of the user's own.

    Args:
        slots, feedback, levels, merge: as for `OrderedQueue`.
        gathered_limit: in bytes.
        remembers: whether to keep a copy of what is sent, for a step that is skipped.
        parts: whether large messages are gathered in parts, at most two of them at once.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        feedback: ErrorFeedback,
        gathered_limit: int,
        levels: Levels,
        remembers: bool = False,
        merge: object = None,
        parts: bool = False,
    ):
        super().__init__(slots, feedback, levels, merge)
        self.gathered_limit, self._remembers, self._parts = gathered_limit, remembers, parts
        varies = feedback.compressor.varies or feedback.warm_up_steps > 0
        self._step_is_agreed = self.world.world_size == 1 or not varies
        self._restart()

    def _restart(self) -> None:
        self._launched = self._gathered_bytes = 0
        self._gathered_until: dict[Slot, int] = {}  # bytes that are received with this slot, the last of its message
        self._under_way.clear()
        self._parked.clear()
        self._copies.clear()
        self._in_rounds: list[Slot] = []  # whose message is a round, in the order of their launch
        self._alone: dict[Slot, int] = {}  # bytes of each message that might go in parts
        self._in_parts: Slot | None = None

    def launch(self, step: int, complete: bool = False) -> None:
        """Launch what is ready. `complete`: no more gradients will come, so the missing ones are sent as zeros."""
        if not self._may_begin(step, complete):
            return
        while self._launched < len(self.messages) and self._in_parts is None:
            if not complete and self.feedback.communicator.would_block:
                return  # another rank may be in a collective of the user's own, and reach this one only in step()
            message = self.messages[self._launched]
            # This runs for each gradient, so the tensor that comes last is checked first.
            if not complete and (message[-1].payload is None or any(slot.payload is None for slot in message)):
                return
            for slot in message:
                if slot.payload is None:
                    slot.payload = self.feedback.absent(slot.parameter, slot.name, step)
            if len(message) == 1 and self._goes_in_parts(message[0], step):
                if not complete or self._gathered_bytes:
                    return
                self._send_in_parts(message[0])
                continue
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

    def _goes_in_parts(self, slot: Slot, step: int) -> bool:
        """Whether to gather the message of `slot` in parts: decided once a step, by numbers equal on all ranks."""
        if not self._parts:
            return False
        if slot not in self._alone:
            self._alone[slot] = self._divided_nbytes(slot, step)
        return self._alone[slot] > self.gathered_limit

    def _divided_nbytes(self, slot: Slot, step: int) -> int:
        """Return the bytes of all ranks' payloads of `slot`; 0 if they cannot be gathered in parts.

        If payload sizes differ between ranks, the size for a tensor without storage counts, which is the same on all.
        """
        payload, name = slot.payload, slot.name
        compressor = self.feedback.compressor_of(name)
        if not (isinstance(payload, Payload) and self.feedback.gathers(name) and compressor.divides):
            return 0
        if not compressor.equal_sizes:
            like = torch.empty(slot.template.shape, dtype=slot.template.dtype, device="meta")
            payload = compressor.compress(like, name, step)
        return self.gathered_nbytes([slot], [payload])

    def _send_in_parts(self, slot: Slot) -> None:
        assert isinstance(slot.payload, Payload)
        slot.message = self.feedback.send_in_parts(slot.payload, slot.name, self.gathered_limit, slot.is_taken)
        slot.payload, self._in_parts = None, slot
        self._under_way.append(slot)
        self._launched += 1

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

    def receive(self) -> Slot | None:
        """Receive as `ReceiveQueue` does, and release the message's share of the bytes that may be under way."""
        slot = self._under_way[0]
        if isinstance(slot.message, Message):
            self._gathered_bytes -= self._gathered_until.pop(slot, 0)
        else:
            self._in_parts = None
        return super().receive()

    def finish(self, arrived: list[Slot]) -> None:
        """End the step in which this rank's gradients came in the order `arrived`."""
        self.learn_order(arrived)
        self._restart()
