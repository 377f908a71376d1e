"""In the style of RGMerge, of which the README of its release is public, without an algorithm."""

from resireduce.merging.arrivals import Arrivals, Ends
from resireduce.merging.filling import scan


def rgmerge_style(arrivals: Arrivals) -> Ends:
    """Return where messages of `arrivals` end that are filled while the one before them is under way.

    This meets the README's two aims: on all ranks the same tensors are merged, as many as are ready, and sizes vary so
    that the link is never idle while something is ready. It is MG-WFBP without waiting.
    """
    ready = arrivals.spread(arrivals.ready)
    return scan(arrivals, lambda filling: ready[..., filling.place + 1] <= filling.free)
