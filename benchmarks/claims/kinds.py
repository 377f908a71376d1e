"""The kinds of tests, by name: a new one is one function and one line here."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.claims.better import better
from benchmarks.claims.case import Case
from benchmarks.claims.identical import identical
from benchmarks.claims.memory import maximum, saving, share
from benchmarks.claims.not_worse import not_worse
from benchmarks.claims.overlap import overlap
from benchmarks.claims.speed import duration, throughput
from benchmarks.claims.verdict import Verdict

CONSISTENCY = "consistency"
"""The kind that needs no cells: `benchmarks.claims.consistency`."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a test compares and what decides it."""

    judge: Callable[[Case], Verdict]
    roles: tuple[str, ...]
    """Roles of cells that a claim must describe."""
    limits: tuple[str, ...]
    """Names in a claim's `test`, beside `kind` and `why`."""
    measured: str
    """The entry of `benchmarks.claims.select.FREE`: which fields of a cell do not matter."""
    on_one_machine: bool = False
    """Whether cells of different hardware or software cannot be compared at all."""
    published: tuple[str, ...] = ("value",)
    """What of the paper's numbers it knows; `tested` and `against` give a difference, `low` and `high` a range."""


PAIR = ("tested", "against")
KINDS: dict[str, Kind] = {
    "share": Kind(judge=share, roles=("tested",), limits=("tolerance", "at_least", "at_most"), measured="memory"),
    "saving": Kind(judge=saving, roles=PAIR, limits=("tolerance", "at_least", "at_most"), measured="memory"),
    "maximum": Kind(judge=maximum, roles=PAIR, limits=("tolerance", "at_least", "at_most"), measured="memory"),
    "not_worse": Kind(
        judge=not_worse,
        roles=(*PAIR, "control"),
        limits=("margin", "relative"),
        measured="metric",
        published=("value", *PAIR),
    ),
    "better": Kind(
        judge=better,
        roles=PAIR,
        limits=("tolerance", "relative"),
        measured="metric",
        published=("value", "low", "high"),
    ),
    "identical": Kind(judge=identical, roles=PAIR, limits=(), measured="digits"),
    "throughput": Kind(judge=throughput, roles=PAIR, limits=("margin",), measured="speed", on_one_machine=True),
    "duration": Kind(judge=duration, roles=PAIR, limits=("margin",), measured="metric", on_one_machine=True),
    "overlap": Kind(judge=overlap, roles=("tested",), limits=("at_most", "ratio"), measured="observation"),
}
