"""Marks around what the library does: where the time of a step goes, and that it is computed exactly."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from resireduce import private

# --- Arithmetic that an autocast around `backward()` or `step()` does not change ---


Q = ParamSpec("Q")
B = TypeVar("B")


def exactly(function: Callable[Q, B]) -> Callable[Q, B]:
    """Have `function` run without autocast, even if a script runs `backward()` or `step()` within one.

    Autocast is for forward passes. Elsewhere it rounds products of matrices, makes float32 of float16, so that messages
    have another dtype, and refuses to concatenate tensors that are neither of its own precision nor of float32. Without
    autocast this costs one look at a flag.
    """

    @wraps(function)
    def exact(*args: Q.args, **kwargs: Q.kwargs) -> B:
        if not private.is_any_autocast():
            return function(*args, **kwargs)
        with private.without_autocast():
            return function(*args, **kwargs)

    return exact


# --- Where the time of a step goes: marks in the pipeline for an observer, which cost nothing without one ---


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


S = TypeVar("S")


def timed(name: str, exact: bool = False) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """Mark a method as phase `name`, of an ErrorFeedback or of a class that has one as `feedback`.

    exact: have it run `exactly`. Without a timeline this costs two looks at attributes.
    """

    def mark(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        work = exactly(method) if exact else method

        @wraps(method)
        def marked(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
            pipeline: Any = getattr(self, "feedback", self)
            timeline: Timeline | None = pipeline.timeline
            if timeline is None:
                return work(self, *args, **kwargs)
            with timeline.phase(name):
                return work(self, *args, **kwargs)

        return marked

    return mark
