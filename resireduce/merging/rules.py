"""Rules that merge the gradients of one step into messages: which neighbours, in order of arrival, travel together.

A rule is a function from `Arrivals` to a boolean array, True where a message ends; TIMED has them by name, and the
simulator more. Imports no torch. Every rule decides once for all ranks, which must be given the same numbers, such as
those of the latest rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resireduce.errors import choose

Array = NDArray[np.float64]
Ends = NDArray[np.bool_]


@dataclass
class Arrivals:
    """What is known of the gradients of one step, in the order in which they arrive in the backward pass.

    Arrays are float64, 0 or more, and their last axis is that of the tensors, at least one; the axes before it, which
    are broadcast, are cases that are decided at once. A message takes the largest `latency` and the sum of `transfer`
    of its tensors, and leaves when all are ready and the previous message has arrived.
    """

    ready: Array
    """Seconds into the backward pass when each can be sent, if compressed by itself: none before the previous one."""
    transfer: Array
    """Seconds that each takes on the link, excluding latency."""
    latency: Array
    """Seconds that a message of it alone takes in addition."""
    nbytes: Array
    """Bytes that are sent of each."""
    backward: Array = 0.0  # type: ignore[assignment]
    """Seconds of the backward pass that each takes, excluding compression; only `omgs` needs it."""
    elements: Array = 0.0  # type: ignore[assignment]
    """Elements that are compressed of each; only `omgs` needs it."""
    compress: Callable[[Array], Array] = np.zeros_like
    """Function from a number of elements, for each case, to the seconds of compression; only `omgs` needs it."""

    def __post_init__(self) -> None:
        """Give all arrays all cases' axes, as views."""
        arrays = {name: values for name, values in vars(self).items() if name != "compress"}
        vars(self).update(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))


def messages_of(ends: Ends) -> list[range]:
    """Return the tensors of each message, by number, for one case, where a rule has returned 1-D `ends`."""
    stops = [int(place) + 1 for place in np.flatnonzero(ends)]
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


class Filling(NamedTuple):
    """A message that holds the tensors up to number `place`, and has not been launched; one value for each case."""

    place: int
    nbytes: Array
    latency: Array
    free: Array
    """When the message before it has arrived."""
    start: Array
    """When it would be launched: its last tensor is ready, and the link is free."""
    end: Array
    """When it would have arrived at all ranks."""


def scan(arrivals: Arrivals, joins: Callable[[Filling], Ends]) -> Ends:
    """Return where messages of `arrivals` end if `joins` says for each message whether the next tensor joins it."""
    *cases, count = arrivals.ready.shape
    ends = np.ones((*cases, count), dtype=bool)
    free = slowest = moved = filled = np.zeros(cases)
    for place in range(count - 1):
        slowest = np.maximum(slowest, arrivals.latency[..., place])
        moved, filled = moved + arrivals.transfer[..., place], filled + arrivals.nbytes[..., place]
        start = np.maximum(arrivals.ready[..., place], free)
        end = start + slowest + moved
        join = joins(Filling(place, filled, slowest, free, start, end))
        ends[..., place] = ~join
        free = np.where(join, free, end)
        slowest, moved, filled = (np.where(join, value, 0.0) for value in (slowest, moved, filled))
    return ends


# --- The rules ---


def mg_wfbp(arrivals: Arrivals) -> Ends:
    """Return where MG-WFBP's messages of `arrivals` end.

    When the next tensor is ready before a message would have arrived, it joins that message if the message could not
    leave before then anyway, or if it waits for less than the latency that is saved. The rule decides tensor by tensor,
    and so is not always the best: `optimal` is.

    Source: Shi et al., "MG-WFBP: efficient data communication for distributed synchronous SGD algorithms", INFOCOM
    2019, algorithm 1.
    """

    def joins(filling: Filling) -> Ends:
        following, start = arrivals.ready[..., filling.place + 1], filling.start
        return (following < filling.end) & ((start > following) | (following - start < filling.latency))

    return scan(arrivals, joins)


def omgs(arrivals: Arrivals) -> Ends:
    """Return where OMGS's messages of `arrivals` end, which are merged first, and then compressed as one tensor.

    Compression is part of the backward pass. The next tensor joins if waiting for it, and compressing longer, takes
    less than the latency that is saved. As published, the rule does not count the next tensor's own compression, so
    that it may be slower than no merging at all.

    Source: Shi et al., "Communication-efficient distributed deep learning with merged gradient sparsification on GPUs",
    INFOCOM 2020.
    """
    backward, elements, transfer, latency = arrivals.backward, arrivals.elements, arrivals.transfer, arrivals.latency
    *cases, count = elements.shape
    compress, ends = arrivals.compress, np.ones((*cases, count), dtype=bool)
    began = free = computed = held = moved = slowest = np.zeros(cases)
    for place in range(count - 1):
        computed, held = computed + backward[..., place], held + elements[..., place]
        moved, slowest = moved + transfer[..., place], np.maximum(slowest, latency[..., place])
        compressed = began + computed + compress(held)
        start = np.maximum(compressed, free)
        following = elements[..., place + 1]
        longer = compress(held + following) - compress(held) - compress(following)
        waits = backward[..., place + 1] + longer - (start - compressed)
        join = waits < np.minimum(slowest, latency[..., place + 1])
        ends[..., place] = ~join
        began, free = np.where(join, began, compressed), np.where(join, free, start + slowest + moved)
        computed, held, moved, slowest = (np.where(join, value, 0.0) for value in (computed, held, moved, slowest))
    return ends


def optimal(arrivals: Arrivals) -> Ends:
    """Return where messages of `arrivals` end so that the last arrives as early as possible, with the fewest messages.

    The earlier the messages of the first tensors arrive, the earlier all can: so it suffices to know for each tensor
    the earliest time at which it and those before it can have arrived. Time and memory are quadratic in their number.

    Source: Bellman, "Dynamic programming", 1957, on the costs that MG-WFBP has.
    """
    ready, latency = arrivals.ready, arrivals.latency
    *cases, count = ready.shape
    moved = np.concatenate((np.zeros((*cases, 1)), np.cumsum(arrivals.transfer, axis=-1)), axis=-1)
    come, first = np.zeros((*cases, count + 1)), np.zeros((*cases, count), dtype=np.int64)
    for last in range(count):
        slowest = np.maximum.accumulate(latency[..., last::-1], axis=-1)[..., ::-1]
        start = np.maximum(come[..., : last + 1], ready[..., last, None])
        end = start + slowest + moved[..., last + 1, None] - moved[..., : last + 1]
        first[..., last] = end.argmin(axis=-1)
        come[..., last + 1] = end.min(axis=-1)
    ends, place = np.zeros(ready.shape, dtype=bool), np.full((*cases, 1), count - 1)
    for _ in range(count):
        np.put_along_axis(ends, place, True, axis=-1)
        before = np.take_along_axis(first, place, axis=-1) - 1
        place = np.where(before < 0, count - 1, before)  # a case that is done begins again
    return ends


def rgmerge_style(arrivals: Arrivals) -> Ends:
    """Return where messages of `arrivals` end that are filled while the one before them is under way.

    It is MG-WFBP without waiting. Of RGMerge only the README of its release is public, without an algorithm. This meets
    the README's two aims: on all ranks the same tensors are merged, as many as are ready, and sizes vary so that the
    link is never idle while something is ready.
    """
    return scan(arrivals, lambda filling: arrivals.ready[..., filling.place + 1] <= filling.free)


TIMED = {"mg-wfbp": mg_wfbp, "omgs": omgs, "optimal": optimal, "rgmerge-style": rgmerge_style}
"""Rules by which training can merge, once it is known what a step costs, by name."""


# --- The measured costs of a step, and the messages that a rule makes by them ---


@dataclass(frozen=True)
class Costs:
    """Times of one step on the slowest rank, for tensors in the order in which they arrive.

    All values are plain, so that `vars` of it can be saved as JSON, and `Costs(**read)` restores it.
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

    def messages(self, rule: str) -> list[list[str]]:
        """Return the names of the tensors of each message that `rule`, one of TIMED, makes; equal for equal costs.

        `omgs` would compress a message as one tensor; this returns only its messages. Raises ConfigError for an unknown
        rule.
        """
        known = self.ready_seconds, self.compress_seconds, self.nbytes, self.elements
        ready, compress, nbytes, elements = (np.asarray(values, dtype=np.float64) for values in known)
        ready = np.maximum.accumulate(ready)
        start, each = line_through(elements, compress)
        arrivals = Arrivals(
            ready,
            nbytes * self.seconds_per_byte,
            np.array([self.latency_seconds]),
            nbytes,
            backward=np.maximum(np.diff(ready, prepend=0.0) - compress, 0.0),
            elements=elements,
            compress=lambda count: start + each * count,
        )
        ends = TIMED[choose("rule", rule, TIMED)](arrivals)
        return [[self.names[place] for place in message] for message in messages_of(ends)]


def line_through(sizes: Array, seconds: Array) -> tuple[float, float]:
    """Return the intercept and slope of the line over `sizes` that is nearest to `seconds` by relative errors.

    Both are 0 or more: by least squares, or the better of a line through 0 and a constant if either would be negative.
    """
    known = seconds > 0
    if not known.any():
        return 0.0, 0.0
    scaled, ones = np.stack((np.ones_like(sizes), sizes), axis=1)[known] / seconds[known, None], np.ones(known.sum())
    tries = [np.linalg.lstsq(scaled * used, ones, rcond=None)[0] * used for used in ([1, 1], [0, 1], [1, 0])]
    allowed = [one for one in tries if (one >= 0).all()]
    start, each = min(allowed, key=lambda one: float(np.square(scaled @ one - 1).sum()))
    return float(start), float(each)
