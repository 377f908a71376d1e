"""Arithmetic that an autocast around `backward()` or `step()` does not change."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def exactly(function: Callable[P, T]) -> Callable[P, T]:
    """Have `function` run without autocast, even if a script runs `backward()` or `step()` within one.

    Autocast is for forward passes. Elsewhere it rounds products of matrices, makes float32 of float16, so that messages
    have another dtype, and refuses to concatenate tensors that are neither of its own precision nor of float32. Without
    autocast this costs one look at a flag.
    """

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        with torch._C._DisableAutocast():
            return function(*args, **kwargs)

    return exact
