"""OMGS-SGD: Shi et al., "Communication-efficient distributed deep learning with merged gradient sparsification on
GPUs", INFOCOM 2020."""

import numpy as np

from resireduce.errors import ConfigError
from resireduce.merging.arrivals import Arrivals, Ends


def omgs(arrivals: Arrivals) -> Ends:
    """Return where OMGS's messages of `arrivals` end, which are merged first, and then compressed as one tensor.

    Compression is part of the backward pass. The next tensor joins if waiting for it, and compressing longer, takes
    less than the latency that is saved. As published, the rule does not count the next tensor's own compression, so
    that it may be slower than no merging at all. Raises ConfigError without `backward`, `elements` and `compress`.
    """
    if arrivals.backward is None or arrivals.elements is None or arrivals.compress is None:
        raise ConfigError("omgs: it must know what compression takes; give backward, elements and compress")
    backward, elements, transfer, latency = map(
        arrivals.spread, (arrivals.backward, arrivals.elements, arrivals.transfer, arrivals.latency)
    )
    compress, ends = arrivals.compress, np.ones(arrivals.shape, dtype=bool)
    began = free = computed = held = moved = slowest = np.zeros(arrivals.shape[:-1])
    for place in range(arrivals.shape[-1] - 1):
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
