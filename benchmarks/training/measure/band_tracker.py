"""The memory of one step over time: the bytes of each kind of tensor after each tensor is made or freed."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from benchmarks.core.moments import BANDS
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.planning.memory import LiveBytes, counted_states, held_tensors


class BandTracker(LiveBytes):
    """Follows the same tensors as `resireduce.planning.memory.track_states`, and remembers each that is made or freed.

    Args:
        counts: says which new tensors are followed.
        held: tensors that are followed from the start, by their band of BANDS.
        shapes: of the parameters: tensors with one of these shapes, or with two or more dimensions (as slices have),
            count as gradients or averages.
    """

    def __init__(
        self, counts: Callable[[Tensor], bool], held: Mapping[str, Iterable[Tensor]], shapes: Iterable[torch.Size]
    ):
        super().__init__(counts)
        self._shapes = set(shapes)
        self._numbers: dict[int, int] = {}  # of live tensors, by the key of their storage
        self._bands: list[str] = []
        self._changes: list[tuple[int, int]] = []
        for tensors in held.values():
            for tensor in tensors:
                self._follow(tensor)
        self._before = len(self._changes)
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
    return BandTracker(counted_states(held["parameters"]), held, [tensor.shape for tensor in held["parameters"]])
