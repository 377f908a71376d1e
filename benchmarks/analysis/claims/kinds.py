"""The kinds of tests, by name; adding one takes one function and one line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.analysis.claims.claim import Criteria
from benchmarks.analysis.claims.identical import identical
from benchmarks.analysis.claims.memory_claims import enough_bytes, maximum, saving, share, with_streamed
from benchmarks.analysis.claims.not_worse import better, not_worse
from benchmarks.analysis.claims.overlap import overlap
from benchmarks.analysis.claims.paired import BOTH as PAIR
from benchmarks.analysis.claims.select import Case, Enough, all_but_control
from benchmarks.analysis.claims.speed import lost_time
from benchmarks.analysis.claims.verdict import Verdict

CONSISTENCY = "consistency"
"""The kind that needs no cells: `benchmarks.analysis.claims.consistency`."""
BOUNDS = ("tolerance", "at_least", "at_most")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a test compares and what decides it."""

    judge: Callable[[Case], Verdict]
    roles: tuple[str, ...]
    """Roles whose cells a claim must describe."""
    limits: tuple[str, ...]
    """Names allowed in a claim's `test`, besides `kind` and `why`."""
    measured: str
    """The entry of `benchmarks.analysis.claims.select.FREE`: which fields of a cell do not matter."""
    bears: str = "nothing"
    """The entry of `benchmarks.analysis.claims.judge.BEARING`: which differences of origin leave the verdict open."""
    together: bool = False
    """Whether all groups and models form one comparison; else each is judged alone, and all must show the claim."""
    more_roles: Callable[[Mapping[str, Criteria]], Mapping[str, Criteria]] = dict
    """Adds the roles of cells that a claim's own roles can be computed from."""
    enough: Enough = all_but_control
    """Whether a group with cells of these roles can be judged."""
    published: tuple[str, ...] = ("value",)
    """The published numbers it takes; `tested` and `against` give a difference, `low` and `high` a range."""


def _of_bytes(judge: Callable[[Case], Verdict], roles: tuple[str, ...] = PAIR, together: bool = False) -> Kind:
    return Kind(
        judge=judge,
        roles=roles,
        limits=BOUNDS,
        measured="memory",
        together=together,
        more_roles=with_streamed,
        enough=enough_bytes,
    )


OF_TIMES: dict[str, Any] = {"roles": PAIR, "limits": ("margin", "noise"), "bears": "times"}
KINDS: dict[str, Kind] = {
    "share": _of_bytes(share, ("tested",), together=True),
    "saving": _of_bytes(saving),
    "maximum": _of_bytes(maximum, together=True),
    "not_worse": Kind(
        judge=not_worse,
        roles=(*PAIR, "control"),
        limits=("margin", "relative"),
        measured="metric",
        bears="digits",
        published=("value", *PAIR),
    ),
    "better": Kind(
        judge=better,
        roles=PAIR,
        limits=("tolerance", "relative"),
        measured="metric",
        bears="digits",
        published=("value", "low", "high"),
    ),
    "identical": Kind(judge=identical, roles=PAIR, limits=(), measured="metric", bears="digits"),
    "throughput": Kind(judge=partial(lost_time, name="steps_per_second"), measured="speed", **OF_TIMES),
    "duration": Kind(judge=partial(lost_time, name="wall_seconds"), measured="metric", **OF_TIMES),
    "overlap": Kind(judge=overlap, roles=("tested",), limits=("at_most", "ratio"), measured="observation"),
}
