"""What a merging rule knows of the gradients of one step, and what its answer means."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resireduce.errors import ConfigError

Array = NDArray[np.float64]
Ends = NDArray[np.bool_]


@dataclass(frozen=True)
class Arrivals:
    """What is known of the gradients of one step, in the order in which they arrive in the backward pass.

    Arrays are float64, and their last axis is that of the tensors, at least one; the axes before it, which broadcast,
    are cases that are decided at once. A message takes the largest `latency` and the sum of `transfer` of its tensors,
    and leaves when all are ready and the previous message has arrived. Raises ConfigError for a number below 0, one
    that is not finite, and a tensor that is ready before the previous one.
    """

    ready: Array
    """Seconds after the start of the backward pass at which each can be sent, if it is compressed by itself."""
    transfer: Array
    """Seconds that each takes on the link, excluding latency."""
    latency: Array
    """Seconds that a message of it alone takes in addition."""
    nbytes: Array
    """Bytes that are sent of each."""
    backward: Array | None = None
    """Seconds of the backward pass that each takes, excluding compression; only `omgs` needs it."""
    elements: Array | None = None
    """Elements that are compressed of each; only `omgs` needs it."""
    compress: Callable[[Array], Array] | None = None
    """Function from a number of elements, for each case, to the seconds of compression; only `omgs` needs it."""

    def __post_init__(self) -> None:
        for name in ("ready", "transfer", "latency", "nbytes"):
            values = getattr(self, name)
            if not values.size or not np.isfinite(values).all() or (values < 0).any():
                raise ConfigError(f"{name}: not all are finite and 0 or more; give such a number for each tensor")
        if (np.diff(self.ready, axis=-1) < 0).any():
            raise ConfigError("ready: a tensor is ready before the one before it; give them in order of arrival")

    @property
    def shape(self) -> tuple[int, ...]:
        """The cases' axes, and the number of tensors."""
        return np.broadcast_shapes(self.ready.shape, self.transfer.shape, self.latency.shape, self.nbytes.shape)

    def spread(self, values: Array) -> Array:
        """Return `values` as a view with all cases' axes."""
        return np.broadcast_to(values, self.shape)


def messages_of(ends: Ends) -> list[range]:
    """Return the tensors of each message, by number, for one case, where a rule has returned 1-D `ends`."""
    stops = [int(place) + 1 for place in np.flatnonzero(ends)]
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
