"""All merging rules that are simulated, and how what they merge is sent: those by which training can merge, and others.

Imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from resireduce.merging.rules import Arrivals, Ends, Filling, mg_wfbp, omgs, optimal, rgmerge_style, scan

# --- Rules that use sizes and the clock, but not the cost of a message ---
#
# None and one: Zhang et al., "Poseidon", ATC 2017, and You et al., SC 2017. DeAR: Zhang et al., ICDCS 2023. Horovod's
# fusion: its documentation, "Tensor fusion".


DEAR_BYTES = 25 * 2**20
"""Least bytes at which a message of DeAR is closed."""
SIZE_BYTES = 25 * 2**20
"""Bytes of a message of fixed size: those of a bucket of DistributedDataParallel."""
HOROVOD_BYTES, HOROVOD_CYCLE_SECONDS = 128 * 2**20, 0.001
"""Horovod's fusion buffer, and the time between two of its cycles, since version 0.21."""


def none(arrivals: Arrivals) -> Ends:
    """Return where messages of `arrivals` end if each tensor has its own: wait-free backpropagation."""
    return np.ones(arrivals.ready.shape, dtype=bool)


def one(arrivals: Arrivals) -> Ends:
    """Return where the one message of all `arrivals` ends: after the backward pass, what others call SyncEA."""
    ends = np.zeros(arrivals.ready.shape, dtype=bool)
    ends[..., -1] = True
    return ends


def size(arrivals: Arrivals, limit_bytes: float = SIZE_BYTES) -> Ends:
    """Return where messages of `arrivals` end that hold `limit_bytes` at most, or one larger tensor."""
    return scan(arrivals, lambda filling: filling.nbytes + arrivals.nbytes[..., filling.place + 1] <= limit_bytes)


def dear(arrivals: Arrivals, limit_bytes: float = DEAR_BYTES) -> Ends:
    """Return where DeAR's messages of `arrivals` end: filled in the order of the forward pass, which is the reverse,
    and closed where the next tensor would make them `limit_bytes` or more."""
    nbytes = arrivals.nbytes[..., ::-1]
    still = Arrivals(np.zeros(nbytes.shape), arrivals.transfer, arrivals.latency, nbytes)
    forward = scan(still, lambda filling: filling.nbytes + nbytes[..., filling.place + 1] < limit_bytes)
    return np.concatenate((forward[..., :-1][..., ::-1], forward[..., -1:]), axis=-1)


def horovod(
    arrivals: Arrivals, limit_bytes: float = HOROVOD_BYTES, cycle_seconds: float = HOROVOD_CYCLE_SECONDS
) -> Ends:
    """Return where Horovod's messages of `arrivals` end: those that are ready in one cycle of `cycle_seconds` are fused
    up to `limit_bytes`."""
    cycle, nbytes = np.ceil(arrivals.ready / cycle_seconds), arrivals.nbytes

    def joins(filling: Filling) -> Ends:
        here, following = filling.place, filling.place + 1
        return (cycle[..., following] == cycle[..., here]) & (filling.nbytes + nbytes[..., following] <= limit_bytes)

    return scan(arrivals, joins)


# --- All rules, and how what they merge is sent ---


@dataclass(frozen=True)
class Rule:
    """A merging rule, and how what it merges is sent."""

    function: Callable[[Arrivals], Ends]
    """From what is known of the tensors to a boolean array of their shape: True where a message ends."""
    compresses_messages: bool = False
    """Whether a message is compressed as one tensor, and not each of its tensors by itself."""
    cycle_seconds: float = 0.0
    """Messages leave at multiples of this only; 0: at any time."""
    in_halves: bool = False
    """Whether an all-reduce is cut into a reduce-scatter in the backward pass and an all-gather in the next forward."""


RULES = {
    "none": Rule(none),
    "one": Rule(one, compresses_messages=True),
    "size": Rule(size),
    "horovod": Rule(horovod, cycle_seconds=HOROVOD_CYCLE_SECONDS),
    "mg-wfbp": Rule(mg_wfbp),
    "omgs": Rule(omgs, compresses_messages=True),
    "rgmerge-style": Rule(rgmerge_style),
    "dear": Rule(dear, in_halves=True),
    "optimal": Rule(optimal),
}
"""All merging rules, by name."""
