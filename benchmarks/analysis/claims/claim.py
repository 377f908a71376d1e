"""The paper's numbers and claims as data, the verdict on a claim, and how its numbers are written."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from benchmarks.analysis.labels import MINUS
from benchmarks.analysis.statistics import Interval
from benchmarks.core.paths import ROOT
from benchmarks.core.record import CellResult

# --- The numbers that the paper states: results/paper/numbers.csv, each value once ---

NUMBERS_FILE = ROOT / "results/paper/numbers.csv"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number that the paper states, in `unit`; None where a column says nothing about it."""

    id: str
    """The name by which claims and tables refer to it."""
    source: str
    """Where it is stated."""
    experiment: str | None
    """The part of config/paper.yaml that measures it."""
    model: str | None
    scheme: str | None
    compressor: str | None
    density: float | None
    world_size: int | None
    quantity: str
    """saving, metric, residual_share, throughput_loss, size ..."""
    value: float
    unit: str | None
    note: str | None
    digits: int = 0
    """Decimals of the printed value."""

    @property
    def rounding(self) -> float:
        """The most by which the printed value may differ from the measured one: half of its last digit."""
        return 0.5 * 10**-self.digits


FIG_9 = ("exp1-local", "exp1-cloud")
"""Parts of the paper's first experiment: Fig. 9a and 9b."""


@lru_cache
def load_published() -> dict[str, Published]:
    """Return the published numbers by id."""
    with NUMBERS_FILE.open(encoding="utf-8", newline="") as file:
        return {row["id"]: _published(row) for row in csv.DictReader(file, strict=True)}


def published_savings(model: str) -> list[float]:
    """Return the savings, in per cent, that the paper states for ResiReduce: on 8 and on 64 GPUs if it states both."""
    numbers = load_published()
    return [numbers[name].value for part in FIG_9 if (name := f"{part}-saving-{model}") in numbers]


def _published(row: Mapping[str, str]) -> Published:
    values: dict[str, Any] = {name: text.strip() or None for name, text in row.items()}
    digits = len(values["value"].partition(".")[2])
    for name, kind in (("value", float), ("density", float), ("world_size", int)):
        values[name] = None if values[name] is None else kind(values[name])
    return Published(**values, digits=digits)


# --- A claim as data: its statement, the cells that test it, and how it is judged ---

Criteria = Mapping[str, Any]
"""Fields of a cell and their values. A field not named has its default, or is free for the kind of test."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where a claim is tested: the models, the cells, the limits that decide, and the command that runs the cells."""

    statement: str
    models: tuple[str, ...]
    """Several are judged together."""
    roles: Mapping[str, Criteria]
    """Criteria for the cells of each role of the kind: tested, against, control; none if no cells test it."""
    limits: Mapping[str, Any]
    """What counts as reproduced: limits by the kind's own names, and in `why` the reason for each."""
    command: str

    @property
    def on_gpus(self) -> bool:
        """Whether it names ranks. In the paper these are GPUs, so measurements on a CPU do not test it."""
        return any("world_size" in criteria for criteria in self.roles.values())


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper, or one of this project's own."""

    id: str
    source: str
    kind: str
    paper: Scope
    small: Scope | None = None
    """The scope of the small models, where they can show something about the claim."""
    published: Mapping[str, Published] = field(default_factory=dict)
    """The paper's numbers by role: `value`, a range from `low` to `high`, or `tested` and `against`, whose difference
    counts."""


@dataclass(frozen=True)
class Margin:
    """The two published values behind the margin of a metric: the largest loss that the paper calls kept."""

    against: Published
    tested: Published
    percent: bool = False
    """Whether the loss counts in per cent of `against`, else in points."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Element counts of a model at full size, from which its states follow by arithmetic."""

    title: str
    parameters: int
    residuals: int
    """Elements with a residual: all but those sent dense."""
    saved: int
    """Elements of residuals that `w+2d` saves."""
    copies: int
    """Copies of the model in the optimizer's states: 1 for momentum, 2 for Adam."""

    @property
    def states(self) -> int:
        """Elements of all states, with kept gradients and full residuals."""
        return (2 + self.copies) * self.parameters + self.residuals


@dataclass(frozen=True, kw_only=True)
class Book:
    """All claims, in the paper's order, and the values they share."""

    claims: tuple[Claim, ...]
    margins: Mapping[str, Margin]
    """By the name of the metric."""
    noise: float
    """Allowance in a margin, in its unit, because the paper's numbers come from single runs."""
    counts: Mapping[str, Counts]
    """By the name of the model."""
    stand_ins: Mapping[str, str]
    """For each model of the paper, the small model that stands in for it."""
    published: Mapping[str, Published]
    """All numbers of the paper, for claims that arithmetic tests."""


# --- The verdict of a test, the ledger's row of a claim, and how their numbers are written ---

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
    """Seeds that show a true loss of zero with 80 % (`metric_claims.seeds_needed`); None if not of accuracy."""
    p_value: float | None = None
    """Two-sided, for the value lying at the verdict's turning point; None if the value is no estimate."""
    results: tuple[CellResult, ...] = ()
    """The records that were compared."""
    hardware: str | None = None
    cells: tuple[str, ...] = ()
    """Names of the cells that the value comes from."""


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

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the records as plain values for JSON, those of its origin last."""
        plain = {"id": self.id} | asdict(replace(self, results=()))
        del plain["results"]
        return plain | {name: plain.pop(name) for name in ("hardware", "cells")}


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


def allowed(published: float | None, limits: Mapping[str, Any]) -> tuple[float, float, str]:
    """Return the least and the largest value, in per cent, that reproduce a claim of bytes, and both in words."""
    if published is not None:
        tolerance = limits["tolerance"]
        return published - tolerance, published + tolerance, f"{published:g} % within {tolerance:g} points"
    low, high = limits.get("at_least", -math.inf), limits.get("at_most", math.inf)
    ends = {"at least": low, "at most": high}
    return low, high, " and ".join(f"{word} {end:g} %" for word, end in ends.items() if math.isfinite(end))


def beside(value: float, published: float, unit: str) -> str:
    """Return a published value, and how far another one is from it."""
    apart = round(value - published, 2)
    return f"published {published:g} {unit}, {abs(apart):.2f} points {'more' if apart >= 0 else 'less'}"


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


def combined(verdicts: Sequence[Verdict], groups: Sequence[str]) -> Verdict:
    """Return the verdict on all groups: the first of the worst, whatever the others show.

    If only some groups were run, the claim stays open.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    statuses = [one.status for one in verdicts]
    status = worst(statuses)
    leading, name = verdicts[statuses.index(status)], groups[statuses.index(status)]
    others = [f"{one} with {group}" for one, group in zip(statuses, groups, strict=True) if group != name]
    reason = f"with {name}: {leading.reason}; {'; '.join(others)}"
    if status == NOT_RUN and set(statuses) != {NOT_RUN}:
        status = INCONCLUSIVE
    if status == REPRODUCED:  # all groups must show it, so the least certain one decides
        values = [one.p_value for one in verdicts if one.p_value is not None]
        leading = replace(leading, seeds=min(one.seeds for one in verdicts), p_value=max(values, default=None))
    return replace(
        leading,
        status=status,
        reason=reason,
        results=tuple(record for one in verdicts for record in one.results),
        hardware="; ".join(one.hardware for one in verdicts if one.hardware) or None,
        cells=tuple(dict.fromkeys(name for one in verdicts for name in one.cells)),
    )
