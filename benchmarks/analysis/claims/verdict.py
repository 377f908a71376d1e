"""The verdict of a test, the ledger's row of a claim, and how their numbers are written."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.analysis.labels import MINUS
from benchmarks.analysis.statistics import Interval
from benchmarks.core.record import CellResult

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, NOT_RUN = "reproduced", "not reproduced", "inconclusive", "not run"
STATUSES = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, NOT_RUN)
SCOPES = ("paper", "small models", "one GPU", "none")
"""What was tested: the paper's own models, small ones that stand in for them, one GPU by its check, or nothing."""
Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one test; value, interval and published are in `unit`."""

    status: str
    reason: str
    """One line: why it has this status, with the arithmetic, or what is missing."""
    value: float | None = None
    interval: Bounds | None = None
    published: float | None = None
    unit: str | None = None
    tolerance: str | None = None
    """What counts as reproduced, in words."""
    seeds: int = 0
    """Lowest number of seeds among the cells compared."""
    seeds_needed: int | None = None
    """Seeds that show a true loss of zero with 80 % (`analysis.claims.margins`); None if it is no claim of accuracy."""
    p_value: float | None = None
    """Two-sided, for the value lying at the verdict's turning point; None if the value is no estimate."""
    results: tuple[CellResult, ...] = ()
    """The records that were compared; the ledger's row has their names."""


@dataclass(frozen=True, kw_only=True)
class LedgerRow(Verdict):
    """A claim with the verdict on it."""

    id: str
    statement: str
    source: str
    """Where the claim is stated: the paper's section, experiment or figure; "ours" for this project's own."""
    scope: str
    """One of SCOPES."""
    command: str
    """The command that measures it, to be run in the root of the project."""
    p_holm: float | None = None
    """`p_value` after Holm's correction over all tested claims of its family."""
    holm: str | None = None
    """The status after that correction."""
    hardware: str | None = None
    cells: tuple[str, ...] = ()
    """Names of the cells that the value comes from."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the records as plain values for JSON."""
        plain = {"id": self.id} | asdict(replace(self, results=()))
        del plain["results"]
        return plain | {"cells": list(self.cells), "interval": list(self.interval) if self.interval else None}


class Undecided(Exception):
    """Ends a test before anything is compared with its limits; its verdict says why."""

    def __init__(self, reason: str, status: str = INCONCLUSIVE, **known: Any) -> None:
        super().__init__(reason)
        self.verdict = Verdict(status=status, reason=reason, **known)


def shown(reproduced: bool) -> str:
    """Return the status of a decided claim."""
    return REPRODUCED if reproduced else NOT_REPRODUCED


def unless_doubted(verdict: Verdict, doubts: Iterable[str | None]) -> Verdict:
    """Return the verdict; one of "reproduced" as inconclusive, with the first of `doubts`, if there is any.

    What is doubted may refute a claim, but not show it.
    """
    doubt = next(filter(None, doubts), None)
    if verdict.status != REPRODUCED or doubt is None:
        return verdict
    return replace(verdict, status=INCONCLUSIVE, reason=f"{verdict.reason}; {doubt}")


def bounds(found: Interval) -> Bounds | None:
    """Return the interval's ends; None for a single value."""
    return None if found.half_width is None else (found.mean - found.half_width, found.mean + found.half_width)


def below(interval: Bounds, limit: float) -> str:
    """Return the status of "less than limit": the whole interval must lie on one side of it."""
    return REPRODUCED if interval[1] < limit else NOT_REPRODUCED if interval[0] > limit else INCONCLUSIVE


def number(value: float, digits: int = 2) -> str:
    """Return a number with `digits` decimals, without a sign at zero."""
    text = f"{abs(value):.{digits}f}"
    return f"{MINUS}{text}" if value < 0 and float(text) else text


def written(value: float, interval: Bounds | None, unit: str) -> str:
    """Return a value with its interval and unit."""
    within = f" [{number(interval[0])}, {number(interval[1])}]" if interval else ""
    return f"{number(value)}{within} {unit}"


def worst(statuses: Iterable[str]) -> str:
    """Return the status of a claim with several groups: all must reproduce it, and one that contradicts refutes it."""
    order = (NOT_REPRODUCED, INCONCLUSIVE, NOT_RUN, REPRODUCED)
    return min(statuses, key=order.index)
