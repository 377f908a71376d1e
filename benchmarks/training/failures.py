"""Classifies a rank's exception: out of memory, diverged, stopped, a lost peer, or a mistake."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.training.deadline import Stopped
from resireduce.errors import ConfigError, NonFiniteGradient

OUT_OF_MEMORY = (
    "out of memory",  # CUDA outside torch's allocator, NCCL
    "can't allocate memory",  # torch's allocator of the CPU raises RuntimeError
    "cannot allocate memory",  # ENOMEM
    "_alloc_failed",  # cuBLAS, cuDNN
)
LOST_PEER = (
    "gloo",
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "a rank did not come",
    "horovod has been shut down",  # by a rank that has ended
)


class Diverged(ArithmeticError):
    """The loss is NaN or infinite: a result, not a failure of the program."""


def check_parameters(model: nn.Module, steps: int) -> None:
    """Raise Diverged if parameters are not finite after `steps` steps: no loss has shown the effect of the last one."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise Diverged(f"{name} held NaN or infinity after the last of {steps} steps")


def describe(error: Exception) -> tuple[str, str, dict[str, Any]]:
    """Return status, reason in one line, and further facts."""
    text = " ".join((str(error).splitlines() or [""])[0].split())
    words = str(error).lower()
    if isinstance(error, Stopped):
        return "timeout", text, {"interrupted": True}
    if isinstance(error, ConfigError):  # such as too few data for a batch
        return "error", text, {}
    if isinstance(error, Diverged | NonFiniteGradient):
        return "diverged", text, {}
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in words for word in OUT_OF_MEMORY):
        return "oom", text or "out of memory", {}
    lost_peer = isinstance(error, dist.DistError | ConnectionError) or any(word in words for word in LOST_PEER)
    return "error", f"{type(error).__name__}: {text}", {"lost_peer": True} if lost_peer else {}
