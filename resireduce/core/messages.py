"""What travels: the payloads of one bucket in one message, and the rounds in which ranks make some payloads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resireduce import private
from resireduce.comm.base import Communicator, Handle
from resireduce.compressors.base import AllGather, AllToAll, Compressor, Rounds
from resireduce.core.payload import ALIGNMENT, Payload

SIZE_BYTES = 8
"""Bytes of the number that gives the length of a payload, where lengths may differ between ranks."""


def packed_nbytes(sizes: Sequence[int], equal_sizes: bool) -> int:
    """Return the bytes of one rank's message of gathered payloads with `sizes` bytes each.

    A single payload travels as it is. Several are aligned and, without `equal_sizes`, preceded by their sizes.
    """
    if len(sizes) == 1:
        return sizes[0]
    return sum(map(_aligned, sizes)) + (0 if equal_sizes else SIZE_BYTES * len(sizes))


@dataclass(eq=False)
class Message:
    """This rank's payloads of the tensors of a bucket on their way to all ranks, by one collective."""

    names: Sequence[str]
    """Names of the tensors."""
    compressor: Compressor
    payloads: Sequence[Payload]
    """This rank's payload of each tensor, in the memory of the buffer."""
    buffer: Tensor
    """What travels, 1-D: the buffer of a single payload, or those of several one behind the other."""
    handle: Handle[Tensor] | Handle[Sequence[Tensor]] | None = None
    """The collective under way, once it has been launched; None with rounds, which have brought everything."""
    _result: Tensor | Sequence[Tensor] | None = None

    @classmethod
    def of(cls, names: Sequence[str], compressor: Compressor, payloads: Sequence[Payload]) -> "Message":
        """Return the message of `payloads`, one for each of `names`, made by `compressor`; several are copied."""
        if len(payloads) == 1:
            return cls(names, compressor, payloads, payloads[0].buffer)
        if compressor.collective == "all_reduce":
            buffer = torch.cat([payload.buffer for payload in payloads])
            parts: Sequence[Tensor] = buffer.split([payload.buffer.numel() for payload in payloads])
        else:
            sizes = [payload.buffer.nbytes for payload in payloads]
            nbytes = packed_nbytes(sizes, compressor.equal_sizes)
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
        return self.buffer.nbytes + sum(payload.rounds_bytes for payload in self.payloads)

    def gathered_nbytes(self, ranks: int) -> int:
        """Return the bytes of the messages of all `ranks`, if they are gathered; 0 if they are summed in place."""
        return ranks * self.nbytes if self.is_gathered else 0

    def launch(self, communicator: Communicator) -> None:
        """Launch the collective; with rounds there is none.

        What a lossless compressor sends is divided by the number of ranks before it is summed.
        """
        if self.is_gathered:
            self.handle = communicator.all_gather(self.buffer, self.names[0], self.compressor.equal_sizes)
        elif self.compressor.collective == "all_reduce":
            if self.compressor.lossless and communicator.world_size > 1:
                self.buffer.mul_(1 / communicator.world_size)
            self.handle = communicator.all_reduce(self.buffer, self.names[0])

    def wait(self) -> None:
        """Wait for the collective."""
        if self._result is None:
            if self.handle is not None:
                self._result = self.handle.wait()
            else:  # the sum that the rounds have found
                (payload,) = self.payloads
                assert payload.known is not None
                self._result = [payload.known]

    def received(self) -> list[Sequence[Tensor]]:
        """Return, for each tensor, the buffers that have come: one of each rank, or the sum alone."""
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


@dataclass
class Round:
    """This rank's input to a sum or exchange over all ranks, whose result gives its payload, or the next round."""

    name: str
    """Name of the tensor."""
    number: int
    """Which of the tensor's rounds in this step it is, from 1."""
    asked: Tensor | AllGather | AllToAll
    """What is summed, in its own memory, or exchanged."""
    rest: Rounds
    """Continues with the sum, or with what has come from each rank."""
    handle: Handle[Any] | None = None
    """The collective under way, once it has been launched."""

    def gathered_nbytes(self, ranks: int) -> int:
        """Return 0, whatever the number of `ranks`: a round is received before the message is launched."""
        return 0

    def launch(self, communicator: Communicator) -> None:
        """Launch the collective by `communicator`, under a name that is unique for the tensor."""
        asked, called = self.asked, f"{self.name}#{self.number}"
        if isinstance(asked, AllToAll):
            self.handle = communicator.all_to_all(asked.tensor, asked.sizes, called)
        elif isinstance(asked, AllGather):
            self.handle = communicator.all_gather(asked.tensor, called, equal_sizes=False)
        else:
            self.handle = communicator.all_reduce(asked, called)


def continue_rounds(name: str, rounds: Rounds, number: int = 0, result: Any = None) -> Payload | Round:
    """Continue `rounds` of tensor `name` with the `result` of round `number`; return the payload or the next round."""
    try:
        asked = rounds.send(result)
    except StopIteration as made:
        payload: Payload = made.value
        return payload
    return Round(name, number + 1, asked, rounds)
