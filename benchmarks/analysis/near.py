"""Find records whose figures agree more closely than those of two trainings do, as copies with a little noise do.

In 3,300 pairs of small models that differ in their seed, and 600 that differ in their residuals, the two histories were
at least 0.002 apart in some evaluation; the phases of 4,500 pairs were at least 0.05 apart, relative to the larger one.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

HISTORY = 1e-4
"""Relative difference up to which two metrics count as equal where all of a history are compared, of three or more
values: a twentieth of the least that was seen."""
FIGURE = 1e-6
"""Relative difference up to which two times, or two losses, count as equal: trainings on a quiet GPU take more alike
times than those that were compared here, and losses are few."""
Item = TypeVar("Item")


def are_near(one: Sequence[float], other: Sequence[float], within: float) -> bool:
    """Return whether two lists are equally long and agree within a relative difference in every figure."""
    return len(one) == len(other) and all(
        abs(mine - others) <= within * max(abs(mine), abs(others)) for mine, others in zip(one, other, strict=True)
    )


def near_groups(pairs: Iterable[tuple[Sequence[float], Item]], within: float) -> list[list[Item]]:
    """Return the items whose figures are near those of the first of their group, group by group; most are alone."""
    found: list[list[Item]] = []
    nearby: list[tuple[Sequence[float], list[Item]]] = []
    for figures, item in sorted(pairs, key=lambda pair: (len(pair[0]), *pair[0][:1])):
        # Sorted by the first figure: groups that it has left behind are left behind by all that follow.
        nearby = [group for group in nearby if are_near(group[0][:1], figures[:1], within)]
        home = next((members for first, members in nearby if are_near(first, figures, within)), None)
        if home is None:
            home = []
            found.append(home)
            nearby.append((figures, home))
        home.append(item)
    return found
