"""What travels: the payload of a tensor, the payloads of a bucket in one message, and the rounds in which ranks make
some payloads."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resireduce import private
from resireduce.comm.base import Communicator, Handle

if TYPE_CHECKING:
    from resireduce.compressors.base import Compressor

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
    ragged: bool = False
    """Whether other ranks may have sent another number of elements."""
    known: Tensor | None = None
    """What all ranks know from earlier rounds, and is not sent again."""
    rounds_bytes: int = 0
    """Bytes that these rounds have sent, besides the buffer."""
    learnt: Mapping[str, Tensor] = field(default_factory=dict)
    """Values for the compressor's state that all ranks have found in these rounds, by their names there."""

    @classmethod
    def pack(
        cls,
        *parts: Tensor,
        like: Tensor,
        source: tuple[str, int] | None = None,
        ragged: bool = False,
        known: Tensor | None = None,
        rounds_bytes: int = 0,
    ) -> "Payload":
        """Copy 1-D `parts` of gradient `like` into one buffer; a single part is taken as it is, without a copy.

        The other arguments are the payload's fields. One that is `ragged`, with as many elements in each part, is not
        padded, so that their number follows from its size.
        """
        layout = tuple((part.dtype, part.numel()) for part in parts)
        if len(parts) == 1:
            return cls(parts[0], layout, like.shape, like.dtype, source, known=known, rounds_bytes=rounds_bytes)
        buffer, _ = unfilled([layout], parts[0].device, ragged)
        payload = cls(buffer, layout, like.shape, like.dtype, source, ragged, known, rounds_bytes)
        for target, part in zip(payload.parts(), parts, strict=True):
            target.copy_(part)
        return payload

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

    def received(self, buffer: Tensor) -> "Payload":
        """Return the payload that another rank sent as `buffer`, in this layout except for the number of elements.

        It is copied if it is not aligned, after a payload of an uneven size.
        """
        if buffer is self.buffer:
            return self
        if len(self.layout) > 1 and buffer.storage_offset() % ALIGNMENT:
            buffer = buffer.clone()
        if not self.ragged:
            return self.holding(buffer)
        count = buffer.numel() // sum(dtype.itemsize for dtype, _ in self.layout)
        return replace(self, buffer=buffer, layout=tuple((dtype, count) for dtype, _ in self.layout))

    def holding(self, buffer: Tensor) -> "Payload":
        """Return `replace(self, buffer=buffer)`, which takes as long as a small addition, once for each tensor."""
        other = object.__new__(Payload)
        held = other.__dict__
        held.update(self.__dict__, buffer=buffer)
        held.pop("_views", None)
        return other

    @property
    def nbytes(self) -> int:
        """Bytes on the wire for one rank, in all rounds."""
        return self.buffer.nbytes + self.rounds_bytes


def unfilled(
    layouts: Sequence[tuple[tuple[torch.dtype, int], ...]], device: torch.device, ragged: bool = False
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return a buffer on `device` for payloads of several parts, padded by zeros, and its part for each layout."""
    sizes = [sum(dtype.itemsize * numel for dtype, numel in layout) for layout in layouts]
    padded = [size if ragged else -(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    if len(layouts) == 1:
        buffer = torch.empty(padded[0], dtype=torch.uint8, device=device)
        if padded > sizes:
            buffer[sizes[0] :].zero_()
        return buffer, [buffer]
    make = torch.zeros if padded != sizes else torch.empty  # one launch, however many are padded
    buffer = make(sum(padded), dtype=torch.uint8, device=device)
    return buffer, buffer.split(padded)


# --- The message of a bucket ---


SIZE_BYTES = 8
"""Bytes of the number that gives the length of a payload, where lengths may differ between ranks."""


@dataclass(eq=False)
class Message:
    """This rank's payloads of the tensors of a bucket on their way to all ranks, by one collective."""

    names: Sequence[str]
    """Names of the tensors."""
    compressor: "Compressor"
    payloads: Sequence[Payload]
    """This rank's payload of each tensor, in the memory of the buffer."""
    buffer: Tensor
    """What travels, 1-D: the buffer of a single payload, or those of several one behind the other. With rounds, nothing
    more does, and this is the first payload's."""
    handle: Handle[Tensor] | Handle[Sequence[Tensor]] | None = None
    """The collective under way, once it has been launched; None with rounds, which have brought everything."""
    _result: Tensor | Sequence[Tensor] | None = None

    @classmethod
    def of(cls, names: Sequence[str], compressor: "Compressor", payloads: Sequence[Payload]) -> "Message":
        """Return the message of `payloads`, one for each of `names`, made by `compressor`; several are copied.

        Gathered ones are aligned and, unless the compressor has `equal_sizes`, preceded by their sizes.
        """
        if len(payloads) == 1 or compressor.collective == "rounds":
            return cls(names, compressor, payloads, payloads[0].buffer)
        if compressor.collective == "all_reduce":
            buffer = torch.cat([payload.buffer for payload in payloads])
            parts: Sequence[Tensor] = buffer.split([payload.buffer.numel() for payload in payloads])
        else:
            sizes = [payload.buffer.nbytes for payload in payloads]
            nbytes = sum(map(_aligned, sizes)) + (0 if compressor.equal_sizes else SIZE_BYTES * len(sizes))
            buffer = torch.zeros(nbytes, dtype=torch.uint8, device=payloads[0].buffer.device)
            if not compressor.equal_sizes:
                _header(buffer, len(sizes)).copy_(torch.tensor(sizes, device=buffer.device))
            parts = _cut(buffer, sizes, payloads, compressor.equal_sizes)
            private.copy_each_([*parts], [payload.buffer for payload in payloads])
        own = [payload.holding(part) for payload, part in zip(payloads, parts, strict=True)]
        return cls(names, compressor, own, buffer)

    @property
    def is_gathered(self) -> bool:
        """Whether every rank receives all ranks' messages, rather than their sum."""
        return self.compressor.collective == "all_gather"

    @property
    def nbytes(self) -> int:
        """Bytes that this rank sends, in all rounds."""
        if self.compressor.collective == "rounds":
            return sum(payload.nbytes for payload in self.payloads)
        return self.buffer.nbytes + sum(payload.rounds_bytes for payload in self.payloads)

    def gathered_nbytes(self, ranks: int) -> int:
        """Return the bytes of the messages of all `ranks`, if they are gathered; 0 if they are summed in place."""
        return ranks * self.nbytes if self.is_gathered else 0

    def launch(self, communicator: Communicator) -> None:
        """Launch the collective, but with rounds; what is lossless is divided by the number of ranks first."""
        if self.is_gathered:
            self.handle = communicator.all_gather(self.buffer, self.names[0], self.compressor.equal_sizes)
        elif self.compressor.collective == "all_reduce":
            if self.compressor.lossless and communicator.world_size > 1:
                self.buffer.mul_(1 / communicator.world_size)
            self.handle = communicator.all_reduce(self.buffer, self.names[0])

    def wait(self) -> None:
        """Wait for the collective."""
        if self._result is None and self.handle is not None:
            self._result = self.handle.wait()

    def received(self) -> list[Sequence[Tensor]]:
        """Return, for each tensor, the buffers that have come: one of each rank, or the sum alone."""
        if self.handle is None:  # rounds have found the sums
            return [[payload.known] for payload in self.payloads if payload.known is not None]
        self.wait()
        if isinstance(self._result, Tensor):
            whole = self._result
            parts = whole.split([one.buffer.numel() for one in self.payloads]) if len(self.payloads) > 1 else [whole]
            return [[part] for part in parts]
        assert self._result is not None
        if len(self.payloads) == 1:
            return [self._result]
        return [*zip(*map(self._of_rank, self._result), strict=True)]

    def _of_rank(self, message: Tensor) -> list[Tensor]:
        """Return the payloads' buffers in the `message` of a rank: views of it."""
        equal = self.compressor.equal_sizes
        known = equal or message.is_meta
        sizes = [payload.buffer.nbytes for payload in self.payloads]
        return _cut(message, sizes if known else _header(message, len(sizes)).tolist(), self.payloads, equal)


def _header(message: Tensor, count: int) -> Tensor:
    """Return the sizes at the beginning of a `message` of `count` payloads: int64, a view."""
    return message[: SIZE_BYTES * count].view(torch.int64)


def _cut(message: Tensor, sizes: Sequence[int], payloads: Sequence[Payload], equal_sizes: bool) -> list[Tensor]:
    """Return the parts of a `message`, `sizes` bytes each, in the dtypes of the `payloads`: views."""
    first = [] if equal_sizes else [SIZE_BYTES * len(sizes)]
    parts = message.split([*first, *map(_aligned, sizes)])[len(first) :]
    cut = []
    for part, size, payload in zip(parts, sizes, payloads, strict=True):
        exact = part if len(part) == size else part[:size]
        cut.append(exact if payload.buffer.dtype == torch.uint8 else exact.view(payload.buffer.dtype))
    return cut


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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
    """This rank's input to a sum or exchange over all ranks, whose result gives its payloads, or the next round."""

    names: Sequence[str]
    """Names of the tensors."""
    number: int
    """Which of their rounds in this step it is, from 1."""
    asked: Asked
    """What is summed, in its own memory, or exchanged."""
    rest: Generator[Asked, Any, list[Payload]]
    """Continues with the sum, or with what has come from each rank."""
    handle: Handle[Any] | None = None
    """The collective under way, once it has been launched."""

    def gathered_nbytes(self, ranks: int) -> int:
        """Return 0, whatever the number of `ranks`: a round is received before the message is launched."""
        return 0

    def launch(self, communicator: Communicator) -> None:
        """Launch the collective by `communicator`, under a name that is unique for the first tensor."""
        asked, called = self.asked, f"{self.names[0]}#{self.number}"
        if isinstance(asked, AllToAll):
            self.handle = communicator.all_to_all(asked.tensor, asked.sizes, called)
        elif isinstance(asked, AllGather):
            self.handle = communicator.all_gather(asked.tensor, called, asked.equal_sizes)
        else:
            self.handle = communicator.all_reduce(asked, called)


def continue_rounds(
    names: Sequence[str], rest: Generator[Asked, Any, list[Payload]], number: int = 0, result: Any = None
) -> list[Payload] | Round:
    """Begin or continue rounds, with the `result` of round `number`; return the payloads or the next round."""
    try:
        asked = rest.send(result)
    except StopIteration as made:
        payloads: list[Payload] = made.value
        return payloads
    return Round(names, number + 1, asked, rest)


def joined(each: Sequence[Rounds]) -> Generator[Asked, Any, list[Payload]]:
    """Take the rounds of several tensors as one: a collective carries what all of them ask for, tensor by tensor.

    Several must ask for the same exchanges in the same order, and for no sums, of equal sizes on and for all ranks.
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
            raise TypeError("rounds_merge: rounds of several tensors must ask for the same exchanges, and for no sums")
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
