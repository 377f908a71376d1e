"""Claims about distributions: residuals overlap within a group, and more than between groups."""

import math

from benchmarks.analysis.claims.select import Case, check_there
from benchmarks.analysis.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Undecided, Verdict, number
from benchmarks.analysis.tables.distribution_table import KINDS, NAME
from benchmarks.core.checks import is_number
from benchmarks.core.record import CellResult

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
    values = [seen[where][kind] for where in ("within", "between") for kind in KINDS]
    if not all(is_number(value) and math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("distances are numbers, 0 or more")
    if max(seen[where][DIVERGENCE] for where in ("within", "between")) > 1 + ROUNDING:
        raise ValueError("a divergence is at most 1 bit")
    return float(seen["within"][DIVERGENCE]), min(seen["between"][kind] / seen["within"][kind] for kind in KINDS)
