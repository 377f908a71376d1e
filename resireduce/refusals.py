"""Uses of torch under which gradients would not be averaged: each is refused by an error that names the cure."""

import os
import sys

import torch

from resireduce.errors import UsageError

COMPILED_AUTOGRAD = (
    "compiled autograd traces the backward pass, whose gradients resireduce compresses and sends: switch "
    "torch._dynamo.config.compiled_autograd off (torch.compile of the model goes on as ever), or use gradients='kept' "
    "without overlap=True"
)


class StepGuard:
    """The hook of the library before each step of a wrapped optimizer; `steps[0]` is 0 while no step is allowed."""

    def __init__(self, steps: list[int]):
        self._steps = steps

    def __call__(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Raise UsageError if the step would use gradients that have not been averaged."""
        if not self._steps[0]:
            raise UsageError(
                f"{type(optimizer).__name__}.step() was called by itself, with gradients of this rank alone: call "
                "step() of what resireduce.distribute(...) returned (keep it), or close() that before"
            )


def refuse_compiled_autograd() -> None:
    """Raise UsageError within a backward pass that compiled autograd runs. Its module is there only if it is in use."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is None:
        return
    if getattr(compiled, "compiled_autograd_enabled", False) or getattr(compiled, "in_compiled_autograd_region", False):
        raise UsageError(COMPILED_AUTOGRAD)


def refuse_capture(device: torch.device) -> None:
    """Raise UsageError if work on `device` is being recorded in a CUDA graph, where no value is known."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "backward() and step() cannot be recorded in a CUDA graph: what is checked and sent depends on the values "
            "of each step; leave them out of what is recorded"
        )


class ThisProcess:
    """The process that has made this object.

    Args:
        cure: what to do instead of going on in a fork of it.
    """

    def __init__(self, cure: str):
        self._number, self._cure = os.getpid(), cure

    def refuse_fork(self) -> None:
        """Raise UsageError in a fork of that process, which would wait for messages for ever."""
        if os.getpid() != self._number:
            raise UsageError(
                "this process was forked after resireduce.distribute(...), and has none of the threads that carry "
                f"messages between ranks: {self._cure}"
            )
