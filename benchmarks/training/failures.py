"""What a rank's exception says of its cell: out of memory, diverged, stopped, a lost neighbour, or a mistake."""

import re
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.measure.memory import peak_resident_bytes
from benchmarks.training.deadline import Stopped
from resireduce.errors import ConfigError, NonFiniteGradient

if TYPE_CHECKING:
    from benchmarks.training.trainer import Trainer

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
ASKED = re.compile(r"allocate (\d+(?:\.\d+)?) ?(bytes|[KMGT]iB)\b")
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Diverged(ArithmeticError):
    """The loss is NaN or infinite: a result, not a failure of the program."""


def outcome_of(error: Exception, trainer: "Trainer | None") -> dict[str, Any]:
    """A rank's outcome: status, reason in one line, where it happened, and what had been measured until then.

    Args:
        error: what ended the rank.
        trainer: as far as it came; None if it was not yet built.
    """
    status, reason, failure = describe(error)
    failure |= {"phase": trainer.phase, "step": trainer.step} if trainer else {"phase": "building"}
    measured = trainer.partial_result() if trainer else {}
    outcome = {"status": status, "reason": reason, "failure": failure}
    return {**outcome, **measured, "peak_resident_bytes": peak_resident_bytes()}


def describe(error: Exception) -> tuple[str, str, dict[str, Any]]:
    """Status, reason in one line, and what else is known of it."""
    text = " ".join((str(error).splitlines() or [""])[0].split())
    words = str(error).lower()
    if isinstance(error, Stopped):
        return "timeout", text, {"interrupted": True}
    if isinstance(error, ConfigError):  # such as data that are too few for a batch
        return "error", text, {}
    if isinstance(error, Diverged | NonFiniteGradient):
        return "diverged", text, {}
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in words for word in OUT_OF_MEMORY):
        return "oom", text or "out of memory", {"asked_bytes": asked_bytes(str(error))}
    lost_peer = isinstance(error, dist.DistError | ConnectionError) or any(word in words for word in LOST_PEER)
    return "error", f"{type(error).__name__}: {text}", {"lost_peer": True} if lost_peer else {}


def asked_bytes(text: str) -> int | None:
    """Bytes that an allocator says it was asked for; None if its message does not say. Rounded as the message is."""
    found = ASKED.search(text)
    return round(float(found[1]) * UNITS[found[2]]) if found else None
