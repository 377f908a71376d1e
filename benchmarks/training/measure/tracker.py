"""Bytes of a rank: states from the tensors held, the moments of a step, and the process as a whole."""

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.core.rank_memory import BANDS, pack_moments
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.planning import sums
from resireduce.planning.memory import LiveBytes, counted_states, held_tensors, itemise_states

LETS_GO_SECONDS = 0.005
"""Within this time a thread of Gloo or Horovod lets go of a message that has been waited for."""


class BandTracker(LiveBytes):
    """Follows the same tensors as `resireduce.planning.memory.track_states`, and remembers each that is made or freed.

    Args:
        counts: says which new tensors are followed.
        held: tensors that are followed from the start, by their band of BANDS.
        shapes: of the parameters: new tensors of these, or of several dimensions, count as gradients or averages.
        others: whether other threads, of communication, may still hold a message that has been waited for. They let
            go of it a moment later, so each new peak is counted after that: else it would be a matter of time.
    """

    def __init__(
        self,
        counts: Callable[[Tensor], bool],
        held: Mapping[str, Iterable[Tensor]],
        shapes: Iterable[torch.Size],
        others: bool = False,
    ):
        super().__init__(counts)
        self._shapes = set(shapes)
        self._others = False  # of what is held from the start, nothing goes
        self._numbers: dict[int, int] = {}  # of live tensors, by the key of their storage
        self._bands: list[str] = []
        self._changes: list[tuple[int, int]] = []
        for tensors in held.values():
            for tensor in tensors:
                self._follow(tensor)
        self._before = len(self._changes)
        self._others = others
        self.name(held)

    def name(self, held: Mapping[str, Iterable[Tensor]]) -> None:
        """Move live tensors to their bands in `held`: a tensor that a step leaves as a state counts as one."""
        for band, tensors in held.items():
            for tensor in tensors:
                key = tensor.untyped_storage()._cdata
                if key in self._numbers:
                    self._bands[self._numbers[key]] = band

    def moments(self) -> list[tuple[int, ...]]:
        """Return the bytes of each of BANDS, at the start and after each change."""
        bands, found = dict.fromkeys(BANDS, 0), list[tuple[int, ...]]()
        for number, change in self._changes:
            bands[self._bands[number]] += change
            found.append((*bands.values(),))
        return found[max(0, self._before - 1) :]

    def _follow(self, tensor: Tensor) -> None:
        key = tensor.untyped_storage()._cdata
        if key in self._alive:
            return
        if self._others and self.current_bytes + tensor.untyped_storage().nbytes() > self.peak_bytes:
            time.sleep(LETS_GO_SECONDS)
        is_dense = tensor.shape in self._shapes or tensor.dim() > 1
        self._numbers[key] = len(self._bands)
        self._bands.append("gradients" if is_dense else "messages")
        super()._follow(tensor)
        self._changes.append((self._numbers[key], self._alive[key]))

    def _forget(self, key: int) -> None:
        self._changes.append((self._numbers.pop(key), -self._alive[key]))
        super()._forget(key)


def track_bands(optimizer: DistributedOptimizer) -> BandTracker:
    """Return a tracker, by band, of all that `optimizer` and a step of it hold; it counts as `track_states` does."""
    held = held_tensors(optimizer)
    shapes = [tensor.shape for tensor in held["parameters"]]
    return BandTracker(counted_states(held["parameters"]), held, shapes, optimizer.levels.world.world_size > 1)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process so far, as the kernel counts it.

    ru_maxrss would also count memory from before exec, that is, everything that the starting process held.
    """
    return status_bytes("VmHWM")


def status_bytes(name: str) -> int:
    """Return an entry of /proc/self/status in bytes."""
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
    of CellResult; `moments` is that step's memory over time, as `benchmarks.core.rank_memory.pack_moments` returns it.
    """
    resident = peak_resident_bytes()
    states = sums(itemise_states(optimizer, model))
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
        "moments": pack_moments(tracker.moments()),
    }
