"""Messages under way, each with its own handle on a collective that several may share, and rounds before them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from resireduce.comm.base import Communicator, Handle
from resireduce.compressors.base import AllGather, AllToAll, Compressor, Rounds
from resireduce.payload import Payload

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
