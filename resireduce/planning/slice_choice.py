"""Which slices of large tensors pay: what several sizes save at the fullest moment of a step, and what each costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from resireduce.plan import plan
from resireduce.slices.slice_checks import SMALLEST

LARGE = 16
"""With slices=True, slices of 1 / LARGE of the trained bytes are planned too: they cut few tensors."""
NEAR, WORTH, WORTH_AGAIN = 0.9, 0.02, 0.05
"""A choice that saves NEAR of what the best one saves is as good. Savings below WORTH of the peak without slices are
not worth slices; for each time that all gradients are made again, WORTH_AGAIN is added to that."""


@dataclass(frozen=True)
class SliceChoice:
    """What one value of `slices` saves and costs, by plan."""

    slices: int | bool
    """As `resireduce.distribute` takes it."""
    peak_states: int
    """Bytes at the fullest moment of a step."""
    saved: int
    """Bytes fewer than without slices; negative if it is more."""
    count: int
    """Slices of gradients that are made, and of averages that are used, in a step."""
    made_again: float
    """Elements of gradients that are made once more, as a share of all that is trained: each is one product of a layer
    beside the three that it has in a step."""

    def __str__(self) -> str:
        """Return the choice in one line, in MiB and per cent."""
        again = f", {self.made_again:.0%} of the gradients computed again" if self.made_again else ""
        price = f" by {self.count:,} slices{again}" if self.slices else ""
        return f"slices={self.slices}: {self.peak_states / 2**20:,.2f} MiB, saves {self.saved / 2**20:,.2f} MiB{price}"


def slice_choices(build: Callable[[], nn.Module], *, slices: int | bool = True, **arguments: Any) -> list[SliceChoice]:
    """Return what no slices, larger ones and those asked for save and cost, by a plan of each.

    The first is without. Raises ConfigError for what `resireduce.plan.plan` raises it for.

    Args:
        build: returns the model, as for `plan`.
        slices: those asked for: True, or a number of bytes.
        arguments: the others of `plan`.
    """
    before = plan(build, slices=None, **arguments)
    sizes = [max(before["parameters"] // LARGE, SMALLEST), True] if slices is True else [slices, True]
    found = [SliceChoice(False, before["peak_states"], 0, 0, 0.0)]
    for size in sizes:
        after = plan(build, slices=size, **arguments)
        saved, price = before["peak_states"] - after["peak_states"], after["slice_price"]
        found.append(SliceChoice(size, after["peak_states"], saved, price["slices"], price["made_again"]))
    return found


def advisable(choices: Sequence[SliceChoice]) -> SliceChoice:
    """Return the one of `choices`, made by `slice_choices`, that is worth its price.

    Among those that save nearly the most it is the one that makes the fewest elements again, and then the one with the
    fewest slices. If none saves enough, it is the first, without slices.
    """
    first, *others = choices
    worth = [one for one in others if one.saved >= (WORTH + WORTH_AGAIN * one.made_again) * first.peak_states]
    most = max((one.saved for one in worth), default=0)
    good = [one for one in worth if one.saved >= NEAR * most]
    return min(good, key=lambda one: (one.made_again, one.count), default=first)
