"""MG-WFBP: Shi et al., "MG-WFBP: efficient data communication for distributed synchronous SGD algorithms", INFOCOM
2019, algorithm 1."""

from resireduce.merging.arrivals import Arrivals, Ends
from resireduce.merging.filling import Filling, scan


def mg_wfbp(arrivals: Arrivals) -> Ends:
    """Return where MG-WFBP's messages of `arrivals` end.

    When the next tensor is ready before a message would have arrived, it joins that message if the message could not
    leave before then anyway, or if it waits for less than the latency that is saved. The rule decides tensor by tensor,
    and so is not always the best: `optimal` is.
    """
    ready = arrivals.spread(arrivals.ready)

    def joins(filling: Filling) -> Ends:
        following, start = ready[..., filling.place + 1], filling.start
        return (following < filling.end) & ((start > following) | (following - start < filling.latency))

    return scan(arrivals, joins)
