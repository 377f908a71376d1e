"""Claims about distributions: residuals of one group overlap, and more than those of different groups do."""

from benchmarks.claims.case import Case, lacking
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Verdict, number
from benchmarks.report.distributions import KINDS, NAME

UNIT = "bits"


def overlap(case: Case) -> Verdict:
    """Judge the Jensen-Shannon divergence within groups, and the ratio between / within of both distances.

    The ratio is the control: where residuals of all groups are alike, overlap says nothing about groups.
    """
    found = case.only
    if missing := lacking(found, "tested"):
        return missing
    record = next(iter(found.results["tested"].values()))
    seen = record.observations.get(NAME)
    try:
        assert seen is not None
        within = float(seen["within"]["jensen_shannon"])
        ratios = [float(seen["between"][kind]) / float(seen["within"][kind]) for kind in KINDS]
    except (AssertionError, KeyError, TypeError, ZeroDivisionError, ValueError):
        return Verdict(status=INCONCLUSIVE, reason=f"{record.cell.name} holds no distances within and between groups")
    most, least = float(case.limits["at_most"]), float(case.limits["ratio"])
    if within > most or min(ratios) <= 1:
        status = NOT_REPRODUCED
    else:
        status = REPRODUCED if min(ratios) >= least else INCONCLUSIVE
    text = f"within groups {number(within, 3)} bits (0 equal, 1 apart), at most {most:g}; between groups "
    text += f"{number(min(ratios), 1)} times as far, at least {least:g}; one seed, one rank"
    return Verdict(
        status=status,
        reason=text,
        value=within,
        unit=UNIT,
        tolerance=f"divergence within groups at most {most:g} bits, between groups {least:g} times as far or more",
        seeds=1,
        results=(record,),
    )
