"""Many claims are tested at once, and some pass by chance: what is left of each by Holm's correction in its family.

S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.claims.finding import Finding
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED
from benchmarks.report.student import CONFIDENCE


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with `p_holm` and `holm`; a verdict that the correction opens says so in its reason."""
    families: dict[str, list[Finding]] = {}
    for one in findings:
        if one.p_value is not None:
            families.setdefault(family(one.id), []).append(one)
    changed = {one.id: one for those in families.values() for one in _of_family(those)}
    return [changed.get(one.id, one) for one in findings]


def family(name: str) -> str:
    """Return the family of a claim: the experiment, observation or section that its id begins with."""
    return name.partition("-")[0]


def adjusted(values: Sequence[float]) -> list[float]:
    """Return p-values so that all those below a level are true rejections at it, but for that probability."""
    found, least = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda one: values[one])):
        least = max(least, min(1.0, (len(values) - rank) * values[index]))
        found[index] = least
    return found


def _of_family(those: Sequence[Finding]) -> list[Finding]:
    values = adjusted([float(one.p_value or 0.0) for one in those])
    return [_with(one, value, len(those)) for one, value in zip(those, values, strict=True)]


def _with(one: Finding, value: float, tested: int) -> Finding:
    opened = one.status in (REPRODUCED, NOT_REPRODUCED) and value > 1 - CONFIDENCE
    text = f"; of {tested} claims tested in its family, inconclusive by Holm's correction (p = {value:.2g})"
    return replace(
        one,
        p_holm=value,
        holm=INCONCLUSIVE if opened else one.status,
        reason=one.reason + (text if opened else ""),
    )
