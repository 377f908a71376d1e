"""The kinds of tests, by name; adding one takes one function and one line here."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.analysis.claims.claim import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Criteria,
    Undecided,
    Verdict,
    number,
)
from benchmarks.analysis.claims.memory_claims import enough_bytes, maximum, saving, share, with_streamed
from benchmarks.analysis.claims.metric_claims import BOTH as PAIR
from benchmarks.analysis.claims.metric_claims import better, identical, not_worse
from benchmarks.analysis.claims.select import Case, Enough, all_but_control, check_there
from benchmarks.analysis.claims.speed import lost_time
from benchmarks.analysis.tables.distribution_table import KINDS as DISTANCES
from benchmarks.analysis.tables.distribution_table import NAME
from benchmarks.core.checks import is_number
from benchmarks.core.record import CellResult

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
    """The entry of `benchmarks.analysis.claims.ledger.BEARING`: which differences of origin leave the verdict open."""
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


# --- Claims about distributions: residuals overlap within a group, and more than between groups ---


UNIT = "bits"
DIVERGENCE = "jensen_shannon"
ROUNDING = 1e-6
"""By how much a sum of float32 shares may be above 1."""


def overlap(case: Case) -> Verdict:
    """Judge the Jensen-Shannon divergence within groups, and the ratio between / within of both distances.

    The ratio is the control: if the residuals of all groups are alike, overlap says nothing about groups. Every seed
    must show both.
    """
    check_there(case.only, "tested")
    records = case.only.records("tested")
    try:
        seen = [_distances(record) for record in records]
    except (LookupError, TypeError, ArithmeticError, ValueError):
        raise Undecided(f"{records[0].cell.name} holds no distances within and between groups") from None
    most, least = float(case.limits["at_most"]), float(case.limits["ratio"])
    within, ratio = max(one[0] for one in seen), min(one[1] for one in seen)
    open_or_not = REPRODUCED if ratio >= least else INCONCLUSIVE
    status = NOT_REPRODUCED if within > most or ratio <= 1 else open_or_not
    text = f"within groups {number(within, 3)} bits (0 equal, 1 apart), at most {most:g}; between groups "
    text += f"{number(ratio, 1)} times as far, at least {least:g}; {len(records)} seed(s), one rank"
    return Verdict(
        status=status,
        reason=text,
        value=within,
        unit=UNIT,
        tolerance=f"divergence within groups at most {most:g} bits, between groups {least:g} times as far or more",
        seeds=len(records),
        results=records,
    )


def _distances(record: CellResult) -> tuple[float, float]:
    """Return the divergence within groups, and the ratio between / within.

    Raises LookupError and others if a distance is missing, ValueError if it is none: a number above 0, or from 0 to 1
    bits for a divergence.
    """
    seen = record.observations[NAME]
    values = [seen[where][kind] for where in ("within", "between") for kind in DISTANCES]
    if not all(is_number(value) and math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("distances are numbers, 0 or more")
    if max(seen[where][DIVERGENCE] for where in ("within", "between")) > 1 + ROUNDING:
        raise ValueError("a divergence is at most 1 bit")
    return float(seen["within"][DIVERGENCE]), min(seen["between"][kind] / seen["within"][kind] for kind in DISTANCES)


# --- The table of all kinds ---


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
