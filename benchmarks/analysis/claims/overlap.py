"""Claims about distributions: residuals overlap within a group, and more than between groups."""

from benchmarks.analysis.claims.select import Case, check_there
from benchmarks.analysis.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Undecided, Verdict, number
from benchmarks.analysis.tables.distribution_table import KINDS, NAME
from benchmarks.core.record import CellResult

UNIT = "bits"


def overlap(case: Case) -> Verdict:
    """Judge the Jensen-Shannon divergence within groups, and the ratio between / within of both distances.

    The ratio is the control: if the residuals of all groups are alike, overlap says nothing about groups. Every seed
    must show both.
    """
    check_there(case.only, "tested")
    records = case.only.records("tested")
    try:
        seen = [_distances(record) for record in records]
    except (LookupError, TypeError, ZeroDivisionError, ValueError):
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
    """Return the divergence within groups, and the ratio between / within. Raises LookupError and others if missing."""
    seen = record.observations[NAME]
    within = float(seen["within"]["jensen_shannon"])
    return within, min(float(seen["between"][kind]) / float(seen["within"][kind]) for kind in KINDS)
