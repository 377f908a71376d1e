"""Where the time of a step goes: marks in the pipeline for an observer, which cost nothing without one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from resireduce.exactly import exactly

P = ParamSpec("P")
T = TypeVar("T")

PHASES = ("compress", "communicate", "decompress", "update")
"""What the library marks. compress: compensate, compress, update the residual. communicate: launch messages, and wait
for those that have not come yet, so of the transfer only what nothing hides. decompress: received messages to dense
averages. update: the wrapped optimizer. A phase may lie within another, as waiting for a message in `decompress`."""


class Timeline(Protocol):
    """Told when a phase begins and ends; set as `ErrorFeedback.timeline`.

    Phases of one rank never overlap: they nest, though not always on one thread (autograd runs hooks on its own).
    """

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Count what is done within it as phase `name`, one of PHASES, but for the phases within that."""
        ...


class Timed(Protocol):
    """A class with methods that `timed` marks."""

    @property
    def timeline(self) -> Timeline | None:
        """The timeline that is told; None: there is none."""
        ...


S = TypeVar("S", bound=Timed)


def timed(name: str, exact: bool = False) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """Mark a method as phase `name`; `exact`: have it run `exactly`. No timeline costs one look at an attribute."""

    def mark(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        work = exactly(method) if exact else method

        @wraps(method)
        def marked(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
            if self.timeline is None:
                return work(self, *args, **kwargs)
            with self.timeline.phase(name):
                return work(self, *args, **kwargs)

        return marked

    return mark
