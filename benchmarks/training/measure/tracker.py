"""Bytes of a rank: model states from the tensors held, the fullest moment of a step, and the process as a whole."""

import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from benchmarks.core.items import pack
from benchmarks.core.moments import pack_moments
from benchmarks.training.measure.band_tracker import track_bands
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.planning.item import sums
from resireduce.planning.memory import held_tensors, itemise_states


def resident_bytes() -> int | None:
    """Return the resident memory of this process; None on a system without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return None


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process so far, as the kernel counts it.

    This is VmHWM if there is a /proc: ru_maxrss also counts memory from before exec, that is, everything that the
    starting process held.
    """
    try:
        return status_bytes("VmHWM")
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def status_bytes(name: str) -> int:
    """Return an entry of /proc/self/status in bytes. Raises OSError or StopIteration if the system lacks it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def reset_peak_resident() -> None:
    """Reset `peak_resident_bytes` to the memory that is resident now, if the kernel allows it (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def measure_memory(
    optimizer: DistributedOptimizer, forward: Callable[[], Tensor], model: nn.Module | None = None
) -> dict[str, Any]:
    """Return this rank's bytes: measured at a step boundary, and in one more step in which every tensor is followed.

    Call it after a step and before `zero_grad`, when all else is done: the extra step changes the model.
    `forward` returns the loss of a batch; `model` names parameters that are not trained. The names returned are those
    of CellResult; `items` are the terms of the model states, as `benchmarks.core.items.pack` returns them, and
    `moments` is that step's memory over time, as `benchmarks.core.moments.pack_moments` returns it.
    """
    resident = peak_resident_bytes()
    items = itemise_states(optimizer, model)
    states = sums(items)
    total = sum(states.values())
    optimizer.zero_grad()
    loss = forward()
    with track_bands(optimizer) as tracker:
        loss.backward()
        optimizer.step()
    tracker.name(held_tensors(optimizer))
    return {
        **{f"{name}_bytes": value for name, value in states.items()},
        "total_bytes": total,
        "in_flight_bytes": tracker.peak_bytes - total,
        "peak_states_bytes": tracker.peak_bytes,
        "peak_resident_bytes": resident,
        "items": pack(items),
        "moments": pack_moments(tracker.moments()),
    }
