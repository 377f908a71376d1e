"""What a step costs, as it was timed, and the messages that a rule makes of that."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from resireduce.errors import ConfigError, choose
from resireduce.merging.arrivals import Array, Arrivals, messages_of
from resireduce.merging.mg_wfbp import mg_wfbp
from resireduce.merging.omgs import omgs
from resireduce.merging.optimal import optimal
from resireduce.merging.rgmerge import rgmerge_style

TIMED = {"mg-wfbp": mg_wfbp, "omgs": omgs, "optimal": optimal, "rgmerge-style": rgmerge_style}
"""Rules that need to know what a step costs, by name."""


@dataclass(frozen=True)
class Costs:
    """Times of one step: of the slowest rank, of tensors in the order in which they arrive.

    All values are plain, so that `vars` of it can be saved as JSON, and `Costs(**read)` is the same again. Raises
    ConfigError unless each list has a number, 0 or more, for each name.
    """

    latency_seconds: float
    """What a message of nothing takes."""
    seconds_per_byte: float
    """What each byte takes that a rank sends."""
    names: Sequence[str]
    """Names of the tensors that are compressed, in the order in which their gradients come."""
    ready_seconds: Sequence[float]
    """When each can be sent, counted from any moment before the first."""
    compress_seconds: Sequence[float]
    """What compressing each takes."""
    nbytes: Sequence[int]
    """What a rank sends of each."""
    elements: Sequence[int]
    """How many elements each of these gradients has."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name == "names":
                continue
            value = getattr(self, one.name)
            values = np.atleast_1d(np.asarray(value, dtype=np.float64))
            is_single = one.name in ("latency_seconds", "seconds_per_byte")
            if len(values) != (1 if is_single else len(self.names)) or not (np.isfinite(values) & (values >= 0)).all():
                raise ConfigError(f"{one.name}: {value!r} is not allowed; give numbers of 0 or more, one for each name")

    def messages(self, rule: str) -> list[list[str]]:
        """Return the names of the tensors of each message that `rule` makes, one of TIMED; the same for same costs.

        `omgs` would compress a message as one tensor; here these are its messages alone. Raises ConfigError for a rule
        that is not known.
        """
        ends = TIMED[choose("rule", rule, TIMED)](self._arrivals())
        return [[self.names[place] for place in message] for message in messages_of(ends)]

    def _arrivals(self) -> Arrivals:
        ready = np.maximum.accumulate(np.asarray(self.ready_seconds, dtype=np.float64))
        nbytes, elements = (np.asarray(values, dtype=np.float64) for values in (self.nbytes, self.elements))
        compress = np.asarray(self.compress_seconds, dtype=np.float64)
        start, each = line_through(elements, compress)
        return Arrivals(
            ready,
            nbytes * self.seconds_per_byte,
            np.full(len(ready), self.latency_seconds),
            nbytes,
            backward=np.maximum(np.diff(ready, prepend=0.0) - compress, 0.0),
            elements=elements,
            compress=lambda count: start + each * count,
        )


def line_through(sizes: Array, seconds: Array) -> tuple[float, float]:
    """Return what is nearest to `seconds`, by relative errors, as a start and an amount for each of `sizes`.

    Both 0 or more: by least squares, or the better of a line through 0 and a constant where that has a negative part.
    """
    known = seconds > 0
    if not known.any():
        return 0.0, 0.0
    scaled = np.stack((np.ones_like(sizes), sizes), axis=1)[known] / seconds[known, None]
    tries = [
        np.linalg.lstsq(scaled * used, np.ones(known.sum()), rcond=None)[0] * used for used in ([1, 1], [0, 1], [1, 0])
    ]
    start, each = min(
        (one for one in tries if (one >= 0).all()), key=lambda one: float(np.square(scaled @ one - 1).sum())
    )
    return float(start), float(each)
