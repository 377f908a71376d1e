"""Messages under way, each of one payload or of several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Handle
from resireduce.compressors.base import AllGather, AllToAll, Compressor, Rounds
from resireduce.core.payload import ALIGNMENT, Payload

# --- Messages under way, each with its own handle on a collective that several may share, and rounds before them ---


T = TypeVar("T")


class Shared(Generic[T]):
    """The handle of one collective for repeated use, or for several messages: it waits for the collective once."""

    def __init__(self, handle: Handle[T]):
        self._handle = handle
        self._result: T | None = None

    def wait(self) -> T:
        """Return the result of the collective."""
        if self._result is None:
            self._result = self._handle.wait()
        return self._result


@dataclass(frozen=True)
class Brought(Generic[T]):
    """The handle of a result that is already there."""

    result: T
    """The result of the rounds."""

    def wait(self) -> T:
        """Return the result."""
        return self.result


@dataclass(frozen=True)
class Part:
    """One of several parts of the result of a shared collective."""

    parts: Shared[Sequence[Tensor]]
    number: int

    def wait(self) -> Tensor:
        """Return the elements of the part, 1-D."""
        return self.parts.wait()[self.number]


@dataclass(frozen=True)
class Message:
    """A payload on its way to all ranks."""

    name: str
    """Name of its tensor, or of the first of several that share the collective."""
    payload: Payload
    compressor: Compressor
    handle: Handle[Tensor] | Handle[Sequence[Tensor]]


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


# --- Payloads of several tensors concatenated in one buffer, so that one gather brings them all ---


SIZE_BYTES = 8
"""Bytes of the number that gives the length of a payload, where lengths may differ between ranks."""


def packed_nbytes(sizes: Sequence[int], equal_sizes: bool) -> int:
    """Return the bytes of one rank's message of payloads with `sizes` bytes each.

    A single payload travels as it is. Several are aligned and, without `equal_sizes`, preceded by their sizes.
    """
    if len(sizes) == 1:
        return sizes[0]
    return sum(map(_aligned, sizes)) + (0 if equal_sizes else SIZE_BYTES * len(sizes))


class Packed:
    """This rank's payloads as one message.

    Args:
        payloads: two or more, on one device, in an order that all ranks share.
        equal_sizes: whether each has the same size on all ranks; else the sizes travel in front.
    """

    def __init__(self, payloads: Sequence[Payload], equal_sizes: bool):
        self._sizes = [payload.buffer.nbytes for payload in payloads]
        self._dtypes, self._equal_sizes = [payload.buffer.dtype for payload in payloads], equal_sizes
        device = payloads[0].buffer.device
        self.buffer = torch.zeros(packed_nbytes(self._sizes, equal_sizes), dtype=torch.uint8, device=device)
        """What travels: 1-D, uint8."""
        if not equal_sizes:
            self._header(self.buffer).copy_(torch.tensor(self._sizes, device=device))
        own = self._cut(self.buffer, self._sizes)
        self.payloads = [replace(payload, buffer=part) for payload, part in zip(payloads, own, strict=True)]
        """The payloads, which now use the memory of the message."""
        for payload, part in zip(payloads, own, strict=True):
            part.copy_(payload.buffer)

    def unpack(self, message: Tensor) -> list[Tensor]:
        """Return the payloads' buffers in the `message` of a rank, 1-D, uint8: views of it."""
        known = self._equal_sizes or message.is_meta
        return self._cut(message, self._sizes if known else self._header(message).tolist())

    def _header(self, message: Tensor) -> Tensor:
        return message[: SIZE_BYTES * len(self._sizes)].view(torch.int64)

    def _cut(self, message: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        start = 0 if self._equal_sizes else SIZE_BYTES * len(sizes)
        parts = []
        for size, dtype in zip(sizes, self._dtypes, strict=True):
            parts.append(message[start : start + size].view(dtype))
            start += _aligned(size)
        return parts


class FromEach:
    """The handle of one payload of several in a gathered message: its buffer in each rank's message.

    Args:
        unpacked: the buffers of all payloads, for each rank.
        number: which of the payloads this is, from 0.
    """

    def __init__(self, unpacked: Shared[list[list[Tensor]]], number: int):
        self._unpacked, self._number = unpacked, number

    def wait(self) -> list[Tensor]:
        """Return the payload's buffers, 1-D, one from each rank, in rank order."""
        return [parts[self._number] for parts in self._unpacked.wait()]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
