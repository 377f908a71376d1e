"""Sends payloads to all ranks, each message by the collective of its compressor, and receives their averages."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Deferred, Handle
from resireduce.compressors.base import Compressor
from resireduce.payload import Payload
from resireduce.sending.choice import CompressorChoice
from resireduce.sending.message import Brought, Message, Part, Round, Shared
from resireduce.sending.packing import FromEach, Packed
from resireduce.sending.parts import Gathered, PartedMessage, Parts
from resireduce.timeline import Timeline, timed


class Messenger(CompressorChoice):
    """Sends by a compressor and a communicator, some tensors dense (paper, section 2.2, steps 4 and 5).

    It averages once. Lossless gradients are scaled by 1 / world size before they are summed, as DistributedDataParallel
    does; what a lossy compressor sends is summed as it is and scaled afterwards, in the gradient's precision: half
    precision would lose small values, which would not enter a residual.

    Args:
        compressor, communicator, dense, warm_up_steps: as for `CompressorChoice`.
    """

    def __init__(
        self, compressor: Compressor, communicator: Communicator, dense: frozenset[str], warm_up_steps: int = 0
    ):
        super().__init__(compressor, communicator, dense, warm_up_steps)
        self.timeline: Timeline | None = None
        """Records where the time of a step goes, if there is one."""

    @timed("communicate", exact=True)
    def send(self, made: Sequence[Payload | Round], *names: str) -> list[Message | Round]:
        """Launch one collective for tensor `names[0]`, or for several tensors of one compressor.

        made: what `compress` returned for each: payloads, or a round, which is then itself returned as under way.
        names: all tensors, or only the first.
        """
        if isinstance(made[0], Round):
            made[0].launch(self.communicator)
            return [made[0]]
        return self._send([payload for payload in made if isinstance(payload, Payload)], names)

    def _send(self, payloads: list[Payload], names: Sequence[str]) -> list[Message | Round]:
        name = names[0]
        compressor = self.compressor_of(name)
        if compressor.collective == "all_gather":
            return self._gather(payloads, compressor, name)
        if compressor.collective == "rounds":
            (payload,) = payloads
            assert payload.known is not None
            return [Message(name, payload, compressor, Brought([payload.known]))]
        # A single tensor is summed in its own memory.
        buffer = payloads[0].buffer if len(payloads) == 1 else torch.cat([payload.buffer for payload in payloads])
        if len(payloads) > 1:
            self._look_at_packed_(buffer, payloads, names)
        if compressor.lossless and self.communicator.world_size > 1:
            buffer.mul_(1 / self.communicator.world_size)
        whole = Shared(self.communicator.all_reduce(buffer, name))
        if len(payloads) == 1:
            return [Message(name, payloads[0], compressor, whole)]
        sizes = [payload.buffer.numel() for payload in payloads]
        cut = Shared(Deferred(lambda: whole.wait().split(sizes)))
        return [
            Message(name, payload.holding(own), compressor, Part(cut, number))
            for number, (payload, own) in enumerate(zip(payloads, buffer.split(sizes), strict=True))
        ]

    def _look_at_packed_(self, packed: Tensor, payloads: Sequence[Payload], names: Sequence[str]) -> None:
        """Look at the `packed` message of `payloads`, of tensors `names`, before it is sent: nothing is done here."""
        return

    def _gather(self, payloads: list[Payload], compressor: Compressor, name: str) -> list[Message | Round]:
        if len(payloads) == 1:
            gathered = self.communicator.all_gather(payloads[0].buffer, name, compressor.equal_sizes)
            return [Message(name, payloads[0], compressor, Shared(gathered))]
        packed = Packed(payloads, compressor.equal_sizes)
        rows = self.communicator.all_gather(packed.buffer, name, compressor.equal_sizes)
        unpacked = Shared(Deferred(lambda: [packed.unpack(row) for row in rows.wait()]))
        return [
            Message(name, payload, compressor, FromEach(unpacked, number))
            for number, payload in enumerate(packed.payloads)
        ]

    @timed("communicate", exact=True)
    def send_in_parts(self, payload: Payload, name: str, most_bytes: int, present: bool) -> PartedMessage:
        """Launch the first of the collectives that gather all ranks' `payload` of tensor `name` in parts.

        most_bytes: of all ranks' parts that are alive at once. present: whether this rank has a gradient.
        """
        parts = Parts(name, payload, self.communicator, most_bytes, present)
        return PartedMessage(name, payload, self.compressor_of(name), parts)

    @timed("communicate")
    def _wait(self, handle: Handle[Tensor] | Gathered) -> Tensor | Sequence[Tensor]:
        return handle.wait()

    @timed("decompress", exact=True)
    def receive(self, message: Message | PartedMessage, into: Tensor | None = None) -> Tensor:
        """Return the dense average of what all ranks sent in `message`.

        It is in contiguous `into`, in the payload's own memory, or in a new tensor.
        """
        if isinstance(message, PartedMessage):
            (flat,) = self.receive_parts(message, (0, message.payload.shape.numel()))
            average = flat.view(message.payload.shape)
            return average if into is None else into.copy_(average)
        payload, received = message.payload, self._wait(message.handle)
        self._learn(message, received)
        if not isinstance(received, Tensor):
            return self._average(message, received, into)
        if message.compressor.lossless:
            averaged = received.view(payload.shape)
            if into is None or into.data_ptr() == averaged.data_ptr():
                return averaged
            return into.copy_(averaged)
        return self._average(message, [received], into)

    def _learn(self, message: Message, received: Tensor | Sequence[Tensor]) -> None:
        """Have the compressor update its state by what all ranks have learnt from a sum, or from rounds."""
        if self.learns(message.name) and (state := self.states.working(message.name)) is not None:
            known = message.payload.received(received) if isinstance(received, Tensor) else message.payload
            message.compressor.learn_(state, known)

    def receive_parts(self, message: Message | PartedMessage, borders: Sequence[int]) -> Iterator[Tensor]:
        """Yield the flat average of `message` between consecutive `borders`, which ascend from 0 to its end.

        The tensors are new and 1-D; it needs a compressor that `cuts`. A message in parts can be read only once.
        """
        sent = [] if isinstance(message, PartedMessage) else self._sent(message)
        for start, stop in pairwise(borders):
            yield self._part(message, sent, start, stop)

    @timed("decompress", exact=True)
    def _sent(self, message: Message) -> list[Payload]:
        """Wait for `message`, and return all ranks' payloads, or their sum."""
        received = self._wait(message.handle)
        self._learn(message, received)
        return [*map(message.payload.received, [received] if isinstance(received, Tensor) else received)]

    @timed("decompress", exact=True)
    def _part(self, message: Message | PartedMessage, sent: Sequence[Payload], start: int, stop: int) -> Tensor:
        """Return elements `start` to `stop` of the flat average of the payloads `sent`, or of a message in parts."""
        payload, scale = message.payload, 1 / self.communicator.world_size
        part = torch.zeros(stop - start, dtype=payload.dtype, device=payload.buffer.device)

        def add(payloads: Iterable[Payload]) -> None:
            for one in payloads:
                message.compressor.add_part_(part, one, start, scale)

        if isinstance(message, PartedMessage):
            parts = message.parts
            parts.through(stop, lambda handle: add(map(parts.received, self._wait(handle))))
        else:
            add(sent)
        return part

    def _average(self, message: Message, buffers: Sequence[Tensor], into: Tensor | None) -> Tensor:
        """Return the combination of all payloads, in rank order, which is the same everywhere."""
        payload, scale = message.payload, 1 / self.communicator.world_size
        if into is None:
            into = torch.empty(payload.shape, dtype=payload.dtype, device=payload.buffer.device)
        return message.compressor.combine_(into, map(payload.received, buffers), scale)
