"""What travels: the payload of a tensor, the payloads of a bucket in one message, and the rounds in which ranks make
some payloads."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from resireduce import private
from resireduce.comm.base import Communicator, Handle

if TYPE_CHECKING:
    from resireduce.compressors.base import Compressor
    from resireduce.core.feedback import CompressorStates

ALIGNMENT = 8
"""A packed message is a multiple of this many bytes, so each rank's share of a gathered buffer suits any dtype."""


@dataclass(frozen=True)
class Payload:
    """The message of one tensor: one buffer, so that values and indices need one collective and not two."""

    buffer: Tensor
    """1-D, all that travels. A single part keeps its own dtype; several are concatenated as uint8, the widest dtype
    first, so that each is aligned."""
    layout: tuple[tuple[torch.dtype, int], ...]
    """Dtype and number of elements of each part."""
    shape: torch.Size
    """Shape of the dense gradient."""
    dtype: torch.dtype
    """Dtype of the dense gradient."""
    source: tuple[str, int] | None = None
    """The name and step that seeded a random choice."""
    known: Tensor | None = None
    """What all ranks know from earlier rounds, and is not sent again."""
    rounds_bytes: int = 0
    """Bytes that these rounds have sent, besides the buffer."""
    learnt: Mapping[str, Tensor] = field(default_factory=dict)
    """Values for the compressor's state that all ranks have found in these rounds, by their names there."""
    alignment: ClassVar[int] = ALIGNMENT
    """Bytes of which the buffer has a multiple."""

    @classmethod
    def pack(cls, *parts: Tensor, like: Tensor, **fields: Any) -> Self:
        """Copy 1-D `parts` of gradient `like` into one buffer; a single part is taken as it is, without a copy.

        fields: the payload's, from `source` on.
        """
        layout = tuple((part.dtype, part.numel()) for part in parts)
        if len(parts) == 1:
            return cls(parts[0], layout, like.shape, like.dtype, **fields)
        _, (payload,) = cls.unfilled([layout], [like], **fields)
        for target, part in zip(payload.parts(), parts, strict=True):
            target.copy_(part)
        return payload

    @classmethod
    def unfilled(
        cls, layouts: Sequence[tuple[tuple[torch.dtype, int], ...]], like: Sequence[Tensor], **fields: Any
    ) -> tuple[Tensor, list[Self]]:
        """Return a buffer on the device of gradients `like` these, and their payloads in it, of several parts each.

        Each is padded by zeros to a multiple of `alignment` bytes. fields: the payloads', from `source` on.
        """
        sizes = [sum(dtype.itemsize * numel for dtype, numel in layout) for layout in layouts]
        padded = [-(-size // cls.alignment) * cls.alignment for size in sizes]
        make = torch.zeros if padded != sizes else torch.empty  # one launch, however many are padded
        buffer = make(sum(padded), dtype=torch.uint8, device=like[0].device)
        parts = buffer.split(padded) if len(padded) > 1 else [buffer]
        each = zip(parts, layouts, like, strict=True)
        return buffer, [cls(part, layout, one.shape, one.dtype, **fields) for part, layout, one in each]

    def parts(self) -> tuple[Tensor, ...]:
        """Return the parts as views of the buffer, in the order in which they were packed."""
        return self._views

    @cached_property
    def _views(self) -> tuple[Tensor, ...]:
        if len(self.layout) == 1:
            return (self.buffer,)
        views, start = {}, 0
        for index in sorted(range(len(self.layout)), key=lambda i: -self.layout[i][0].itemsize):
            dtype, numel = self.layout[index]
            stop = start + numel * dtype.itemsize
            views[index] = self.buffer[start:stop].view(dtype)
            start = stop
        return tuple(views[index] for index in range(len(views)))

    def received(self, buffer: Tensor) -> Self:
        """Return the payload that another rank sent as `buffer`, in this layout."""
        return self if buffer is self.buffer else self.holding(buffer)

    def holding(self, buffer: Tensor) -> Self:
        """Return `replace(self, buffer=buffer)`, which takes as long as a small addition, once for each tensor."""
        other = object.__new__(type(self))
        held = other.__dict__
        held.update(self.__dict__, buffer=buffer)
        held.pop("_views", None)
        return other

    @property
    def nbytes(self) -> int:
        """Bytes on the wire for one rank, in all rounds."""
        return self.buffer.nbytes + self.rounds_bytes


class Ragged(Payload):
    """The payload of a tensor of which other ranks may have sent another number of elements.

    It has as many elements in each part, and is not padded, so that their number follows from its size.
    """

    alignment: ClassVar[int] = 1

    def received(self, buffer: Tensor) -> Self:
        """Return the payload that another rank sent as `buffer`: a copy, if it is not aligned behind another one."""
        buffer = buffer.clone() if buffer.storage_offset() % ALIGNMENT else buffer
        count = buffer.numel() // sum(dtype.itemsize for dtype, _ in self.layout)
        return replace(self, buffer=buffer, layout=tuple((dtype, count) for dtype, _ in self.layout))


# --- The message of a bucket ---


Into = Callable[[int], Tensor]
"""Returns, for the number of a tensor in its message, contiguous memory for its average, such as `Message.room`."""


@dataclass(eq=False)
class Message:
    """This rank's payloads of the tensors of a bucket on their way to all ranks, by one collective: an all-gather."""

    names: Sequence[str]
    compressor: "Compressor"
    payloads: Sequence[Payload]
    """This rank's payload of each tensor, in the memory of the buffer."""
    buffer: Tensor
    """What travels, 1-D: the buffer of a single payload, or those of several one behind the other. Where rounds have
    exchanged everything, no buffer travels, and this is the first payload's."""
    handle: Handle[Any] | None = None
    """The collective under way, once it has been launched."""
    received: Sequence[Sequence[Tensor]] = ()
    """For each tensor, once they have come, the buffers of all ranks, or their sum alone."""

    @classmethod
    def of(cls, names: Sequence[str], compressor: "Compressor", payloads: Sequence[Payload]) -> Self:
        """Return the message of `payloads`, one for each of `names`, made by `compressor`; several are copied."""
        message = cls(names, compressor, payloads, payloads[0].buffer)
        if len(payloads) > 1:
            message.buffer, parts = message._joined([one.buffer for one in payloads])
            message.payloads = [payload.holding(part) for payload, part in zip(payloads, parts, strict=True)]
        return message

    def _joined(self, buffers: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the message that holds `buffers`, each aligned, and its parts."""
        message = torch.zeros(sum(_aligned(one.nbytes) for one in buffers), dtype=torch.uint8, device=buffers[0].device)
        parts = _parts(message, [one.nbytes for one in buffers], buffers)
        private.copy_each_(parts, [*buffers])
        return message, parts

    @property
    def nbytes(self) -> int:
        """Bytes that this rank sends, in all rounds."""
        return self.buffer.nbytes + sum(payload.rounds_bytes for payload in self.payloads)

    @property
    def gathered_bytes(self) -> int:
        """Bytes that come from each rank; 0: a sum comes, in the message's own memory."""
        return self.nbytes

    def launch(self, communicator: Communicator) -> None:
        """Launch the collective, if any."""
        self.handle = communicator.all_gather(self.buffer, self.names[0])

    def wait(self) -> None:
        """Wait for the collective."""
        if not self.received:
            assert self.handle is not None
            self.received = self._cut(self.handle.wait())

    def room(self, place: int) -> Tensor:
        """Return contiguous memory for the average of the tensor at `place`, counted from 0."""
        own = self.payloads[place]
        return torch.empty(own.shape, dtype=own.dtype, device=own.buffer.device)

    def averages(self, places: Sequence[int], into: Into, scale: float, states: "CompressorStates") -> list[Tensor]:
        """Return the dense averages of some tensors, once their payloads have come; change the `states` that learn.

        places: which of the tensors, counted from 0. scale: 1 / number of ranks.
        """
        payloads = [[*map(self.payloads[place].received, self.received[place])] for place in places]
        averages = [into(place) for place in places]
        self.compressor.combine_each_(averages, payloads, scale)
        return averages

    def _cut(self, result: Any) -> Sequence[Sequence[Tensor]]:
        """Return, for each tensor, the buffers that have come."""
        return [result] if len(self.payloads) == 1 else [*zip(*map(self._of_rank, result), strict=True)]

    def _of_rank(self, message: Tensor) -> list[Tensor]:
        """Return the payloads' buffers in the `message` of a rank: views of it."""
        buffers = [payload.buffer for payload in self.payloads]
        return _parts(message, [one.nbytes for one in buffers], buffers)


class Sized(Message):
    """Payloads whose sizes may differ between ranks: several are preceded by their sizes."""

    def _joined(self, buffers: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        sizes = torch.tensor([one.nbytes for one in buffers], device=buffers[0].device)
        message, parts = super()._joined([sizes.view(torch.uint8), *buffers])
        return message, parts[1:]

    def launch(self, communicator: Communicator) -> None:
        """Launch the all-gather."""
        self.handle = communicator.all_gather(self.buffer, self.names[0], equal_sizes=False)

    def _of_rank(self, message: Tensor) -> list[Tensor]:
        header, buffers = torch.int64.itemsize * len(self.payloads), [payload.buffer for payload in self.payloads]
        told = [one.nbytes for one in buffers] if message.is_meta else message[:header].view(torch.int64).tolist()
        return _parts(message[header:], told, buffers)


class Summed(Message):
    """Payloads that are summed over all ranks, in their own memory, by an all-reduce."""

    gathered_bytes: ClassVar[int] = 0

    def _joined(self, buffers: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        message = torch.cat([*buffers])
        return message, message.split([one.numel() for one in buffers])

    def launch(self, communicator: Communicator) -> None:
        """Launch the all-reduce."""
        self.handle = communicator.all_reduce(self.buffer, self.names[0])

    def averages(self, places: Sequence[int], into: Into, scale: float, states: "CompressorStates") -> list[Tensor]:
        """Do as a gathered message does, and have the `states` of the compressor learn from the sums."""
        for place in places:
            name, payload = self.names[place], self.payloads[place]
            if name in states.held:
                self.compressor.learn_(states.working(name), payload.received(self.received[place][0]))
        return super().averages(places, into, scale, states)

    def _cut(self, result: Any) -> Sequence[Sequence[Tensor]]:
        sizes = [one.buffer.numel() for one in self.payloads]
        return [[part] for part in (result.split(sizes) if len(sizes) > 1 else [result])]


class Dense(Summed):
    """Gradients, which are divided by the number of ranks before they are summed, as DistributedDataParallel does."""

    def launch(self, communicator: Communicator) -> None:
        """Divide, and launch the all-reduce."""
        if communicator.world_size > 1:
            self.buffer.mul_(1 / communicator.world_size)
        super().launch(communicator)

    def room(self, place: int) -> Tensor:
        """Return the memory of the sum."""
        own = self.payloads[place]
        return own.buffer.view(own.shape)

    def averages(self, places: Sequence[int], into: Into, scale: float, states: "CompressorStates") -> list[Tensor]:
        """Return the sums of some gradients, which are averages: `into` these tensors."""
        averages, found = [into(place) for place in places], [self.received[place][0] for place in places]
        pairs = [(to, one) for to, one in zip(averages, found, strict=True) if to.data_ptr() != one.data_ptr()]
        if pairs:
            private.copy_each_([to.view(-1) for to, _ in pairs], [one for _, one in pairs])
        return averages


class Found(Summed):
    """Payloads whose sum the rounds in which they were made have found: nothing more travels."""

    @classmethod
    def of(cls, names: Sequence[str], compressor: "Compressor", payloads: Sequence[Payload]) -> Self:
        """Return the message of `payloads`, without copying them."""
        sums = [[one.known] for one in payloads if one.known is not None]
        return cls(names, compressor, payloads, payloads[0].buffer, None, sums)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank has sent in the rounds."""
        return sum(payload.nbytes for payload in self.payloads)

    def launch(self, communicator: Communicator) -> None:
        """Launch nothing."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _parts(message: Tensor, sizes: Sequence[int], like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of the beginning of `message`, each aligned, of so many bytes and the dtype of one `like` it."""
    parts = message.split([*map(_aligned, sizes)])
    exact = [part if len(part) == size else part[:size] for part, size in zip(parts, sizes, strict=True)]
    dtypes = [one.dtype for one in like]
    return [one if dtype == torch.uint8 else one.view(dtype) for one, dtype in zip(exact, dtypes, strict=True)]


# --- The rounds in which ranks make some payloads; beside these a round may ask for a plain tensor's sum ---


@dataclass(frozen=True)
class AllGather:
    """This rank's elements, for all ranks; each rank gets a list of every rank's elements, in rank order."""

    tensor: Tensor
    """1-D, as many elements as this rank has, perhaps none."""
    equal_sizes: bool = False
    """Whether every rank has as many."""


@dataclass(frozen=True)
class AllToAll:
    """This rank's elements, some for each rank; each rank gets a list of what every rank has for it, in rank order."""

    tensor: Tensor
    """1-D: the elements for rank 0, followed by those for rank 1, and so on."""
    sizes: Sequence[int]
    """How many elements are for each rank."""


Asked = Tensor | AllGather | AllToAll
Rounds = Generator[Asked, Any, Payload]
"""A payload in the making: yields contiguous tensors, one by one, to be summed over all ranks, is sent each sum, formed
in the tensor's own memory, and returns the payload. `AllGather` and `AllToAll` ask for other rounds."""


@dataclass
class Round:
    """This rank's input to a sum or exchange over all ranks, whose result gives its message, or the next round."""

    names: Sequence[str]
    compressor: "Compressor"
    rest: Generator[Asked, Any, list[Payload]]
    """Continues with the sum, or with what has come from each rank."""
    number: int = 0
    """Which of their rounds in this step it is, from 1; 0: none has begun."""
    asked: Any = None
    """What is summed, in its own memory, or exchanged."""
    handle: Handle[Any] | None = None
    """The collective under way, once it has been launched."""
    gathered_bytes: ClassVar[int] = 0

    def go_on(self, result: Any = None) -> "Message | Round":
        """Return what follows once the `result` has come: the next round, or the message."""
        try:
            return Round(self.names, self.compressor, self.rest, self.number + 1, self.rest.send(result))
        except StopIteration as made:
            return self.compressor.message(self.names, made.value)

    def launch(self, communicator: Communicator) -> None:
        """Launch the collective by `communicator`, under a name that is unique for the first tensor."""
        asked, called = self.asked, f"{self.names[0]}#{self.number}"
        if isinstance(asked, AllToAll):
            self.handle = communicator.all_to_all(asked.tensor, asked.sizes, called)
        elif isinstance(asked, AllGather):
            self.handle = communicator.all_gather(asked.tensor, called, asked.equal_sizes)
        else:
            self.handle = communicator.all_reduce(asked, called)


def joined(each: Sequence[Rounds]) -> Generator[Asked, Any, list[Payload]]:
    """Take the rounds of several tensors as one: a collective carries what all of them ask for, tensor by tensor.

    Several must ask for the same exchanges in the same order, of one size on all ranks and for all, and for no sums.
    """
    if len(each) == 1:
        return [(yield from each[0])]
    results: Sequence[Any] = [None] * len(each)
    while True:
        asked: list[Any] = []
        made: list[Payload] = []
        for one, result in zip(each, results, strict=True):
            try:
                asked.append(one.send(result))
            except StopIteration as end:
                made.append(end.value)
        if not asked:
            return made
        if made or len({type(one) for one in asked}) > 1 or isinstance(asked[0], Tensor):
            raise TypeError("merges: rounds of several tensors must ask for the same exchanges, and for no sums")
        if isinstance(asked[0], AllToAll):
            sizes = [one.sizes[0] for one in asked]
            for_ranks = zip(*(one.tensor.split(one.sizes) for one in asked), strict=True)
            ranks = len(asked[0].sizes)
            come = yield AllToAll(torch.cat([part for parts in for_ranks for part in parts]), [sum(sizes)] * ranks)
        else:
            sizes = [one.tensor.numel() for one in asked]
            come = yield AllGather(torch.cat([one.tensor for one in asked]), asked[0].equal_sizes)
        # A rank alone, as in a plan, is given all of its own.
        results = [*zip(*(theirs[: sum(sizes)].split(sizes) for theirs in come), strict=True)]
