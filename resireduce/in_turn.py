"""Hooks of the backward pass take turns: autograd runs a thread for each device, and scripts may run several passes."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar


class TakesTurns:
    """An object of which some methods are `in_turn`."""

    def __init__(self) -> None:
        self._turn = threading.RLock()


P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner", bound=TakesTurns)


def in_turn(method: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
    """Return `method`, which waits until no other thread is within such a method of the same object.

    A model on two devices has its gradients finished by two threads of autograd at the same time, and each hook uses
    the queue of messages.
    """

    @wraps(method)
    def waiting(self: Owner, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            return method(self, *args, **kwargs)

    return waiting
