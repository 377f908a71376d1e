"""The measured costs of a step, and the messages that a rule makes by them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from resireduce.errors import ConfigError, choose
from resireduce.merging.rules import Array, Arrivals, messages_of, mg_wfbp, omgs, optimal, rgmerge_style

TIMED = {"mg-wfbp": mg_wfbp, "omgs": omgs, "optimal": optimal, "rgmerge-style": rgmerge_style}
"""Rules that need to know what a step costs, by name."""


@dataclass(frozen=True)
class Costs:
    """Times of one step on the slowest rank, for tensors in the order in which they arrive.

    All values are plain, so that `vars` of it can be saved as JSON, and `Costs(**read)` restores it. Raises
    ConfigError unless each list has a number, 0 or more, for each name.
    """

    latency_seconds: float
    """Time of an empty message."""
    seconds_per_byte: float
    """Time of each byte that a rank sends."""
    names: Sequence[str]
    """Names of the tensors that are compressed, in the order in which their gradients come."""
    ready_seconds: Sequence[float]
    """When each can be sent, counted from any moment before the first."""
    compress_seconds: Sequence[float]
    """Time to compress each."""
    nbytes: Sequence[int]
    """Bytes that a rank sends of each."""
    elements: Sequence[int]
    """Number of elements of each gradient."""

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
        """Return the names of the tensors of each message that `rule`, one of TIMED, makes; equal for equal costs.

        `omgs` would compress a message as one tensor; this returns only its messages. Raises ConfigError for an unknown
        rule.
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
    """Return the intercept and slope of the line over `sizes` that is nearest to `seconds` by relative errors.

    Both are 0 or more: by least squares, or the better of a line through 0 and a constant if either would be negative.
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
