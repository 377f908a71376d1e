"""Bytes of a rank: model states from the tensors held, the fullest moment of a step, and the process as a whole."""

import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch import Tensor

from resireduce.memory import measure_states, track_states
from resireduce.optimizer import DistributedOptimizer


@dataclass(frozen=True)
class RankBytes:
    """One rank's memory; the names are those of CellResult."""

    parameters_bytes: int
    gradients_bytes: int
    residuals_bytes: int
    optimizer_states_bytes: int
    total_bytes: int
    in_flight_bytes: int
    peak_states_bytes: int
    peak_resident_bytes: int

    def as_dict(self) -> dict[str, int]:
        """Plain values."""
        return asdict(self)


def peak_resident_bytes() -> int:
    """Most memory of this process that was resident at once, so far, as the kernel counts it."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_memory(optimizer: DistributedOptimizer, forward: Callable[[], Tensor]) -> RankBytes:
    """Measure at a step boundary, then run one more step, of which every tensor is followed.

    Call it after a step and before `zero_grad`, when all else is done: the extra step changes the model.
    `forward` returns the loss of a batch.
    """
    resident = peak_resident_bytes()
    states = measure_states(optimizer)
    optimizer.zero_grad()
    loss = forward()
    with track_states(optimizer) as tracker:
        loss.backward()
        optimizer.step()
    return RankBytes(
        **{f"{name}_bytes": value for name, value in states.as_dict().items()},
        in_flight_bytes=tracker.peak_bytes - states.total,
        peak_states_bytes=tracker.peak_bytes,
        peak_resident_bytes=resident,
    )
