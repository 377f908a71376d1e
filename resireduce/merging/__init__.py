"""Rules that merge the gradients of one step into messages: which neighbours, in order of arrival, travel together.

A rule is a function from `Arrivals` to a boolean array, True where a message ends; RULES has all, by name. Imports no
torch. Every rule decides once for all ranks, which must be given the same numbers, such as those of the latest rank.
"""

from collections.abc import Callable
from dataclasses import dataclass

from resireduce.merging.rules import (
    HOROVOD_CYCLE_SECONDS,
    Arrivals,
    Ends,
    dear,
    horovod,
    mg_wfbp,
    none,
    omgs,
    one,
    optimal,
    rgmerge_style,
    size,
)


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
