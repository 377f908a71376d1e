"""The pass over the tensors shared by all rules that decide for each whether it joins the one before."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from resireduce.merging.arrivals import Array, Arrivals, Ends


@dataclass(frozen=True)
class Filling:
    """A message that holds the tensors up to number `place`, and has not been launched; one value for each case."""

    place: int
    ready: Array
    """When its last tensor is ready."""
    latency: Array
    transfer: Array
    nbytes: Array
    free: Array
    """When the message before it has arrived."""

    @property
    def start(self) -> Array:
        """Return when the message would be launched: its last tensor is ready, and the link is free."""
        return np.maximum(self.ready, self.free)

    @property
    def end(self) -> Array:
        """Return when the message would have arrived at all ranks."""
        return self.start + self.latency + self.transfer


def scan(arrivals: Arrivals, joins: Callable[[Filling], Ends]) -> Ends:
    """Return where messages of `arrivals` end if `joins` says for each message whether the next tensor joins it."""
    ready, transfer, latency, nbytes = map(
        arrivals.spread, (arrivals.ready, arrivals.transfer, arrivals.latency, arrivals.nbytes)
    )
    ends = np.ones(arrivals.shape, dtype=bool)
    free = slowest = moved = filled = np.zeros(arrivals.shape[:-1])
    for place in range(arrivals.shape[-1] - 1):
        slowest = np.maximum(slowest, latency[..., place])
        moved, filled = moved + transfer[..., place], filled + nbytes[..., place]
        filling = Filling(place, ready[..., place], slowest, moved, filled, free)
        join = joins(filling)
        ends[..., place] = ~join
        free = np.where(join, free, filling.end)
        slowest, moved, filled = (np.where(join, value, 0.0) for value in (slowest, moved, filled))
    return ends
