"""Messages under way, each of which has its own handle on a collective that several may share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from resireduce.comm.base import Handle
from resireduce.compressors.base import Compressor
from resireduce.payload import Payload

T = TypeVar("T")


class Shared(Generic[T]):
    """The handle of one collective that may be asked more than once, or by several messages: waits for it once."""

    def __init__(self, handle: Handle[T]):
        self._handle = handle
        self._result: T | None = None

    def wait(self) -> T:
        """Return the result of the collective."""
        if self._result is None:
            self._result = self._handle.wait()
        return self._result


@dataclass(frozen=True)
class Part:
    """The elements `start` to `stop` of what a shared collective brings."""

    whole: Shared[Tensor]
    start: int
    stop: int

    def wait(self) -> Tensor:
        """Return the elements of the part, 1-D."""
        return self.whole.wait()[self.start : self.stop]


@dataclass(frozen=True)
class Message:
    """A payload on its way to all ranks."""

    payload: Payload
    compressor: Compressor
    handle: Handle[Tensor] | Handle[Sequence[Tensor]]
