"""The best messages there are, by dynamic programming: Bellman, "Dynamic programming", 1957, on the costs that MG-WFBP
(Shi et al., INFOCOM 2019) has."""

import numpy as np

from resireduce.merging.arrivals import Arrivals, Ends


def optimal(arrivals: Arrivals) -> Ends:
    """Return where messages of `arrivals` end so that the last arrives as early as possible, with the fewest messages.

    The earlier the messages of the first tensors arrive, the earlier all can: so it suffices to know for each tensor
    the earliest time at which it and those before it can have arrived. Time and memory are quadratic in their number.
    """
    ready, transfer, latency = map(arrivals.spread, (arrivals.ready, arrivals.transfer, arrivals.latency))
    *cases, count = arrivals.shape
    moved = np.concatenate((np.zeros((*cases, 1)), np.cumsum(transfer, axis=-1)), axis=-1)
    come, first = np.zeros((*cases, count + 1)), np.zeros((*cases, count), dtype=np.int64)
    for last in range(count):
        slowest = np.maximum.accumulate(latency[..., last::-1], axis=-1)[..., ::-1]
        start = np.maximum(come[..., : last + 1], ready[..., last, None])
        end = start + slowest + moved[..., last + 1, None] - moved[..., : last + 1]
        first[..., last] = end.argmin(axis=-1)
        come[..., last + 1] = end.min(axis=-1)
    ends, place = np.zeros(arrivals.shape, dtype=bool), np.full((*cases, 1), count - 1)
    for _ in range(count):
        np.put_along_axis(ends, place, True, axis=-1)
        before = np.take_along_axis(first, place, axis=-1) - 1
        place = np.where(before < 0, count - 1, before)  # a case that is done begins again
    return ends
