"""Select the cells that a claim compares: cells of its roles that are alike in all else, group by group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.analysis.claims.claim import NOT_RUN, Book, Claim, Criteria, Scope, Undecided
from benchmarks.analysis.claims.evidence import Evidence
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Hole
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.record import CellResult

CONTROL = "control"
MEMORY = "memory"
SHAPE = ("data", "steps", "batch_per_rank", "length")
"""Fields that make a cell less than a whole training of its model if they are not at their default."""
PLACES = ("world_size", "nodes", "backend")
FREE: dict[str, tuple[str, ...]] = {
    MEMORY: (*PLACES, "observe", *SHAPE),
    "metric": PLACES,
    "speed": (*PLACES, *SHAPE),
    "observation": PLACES,
}
"""By measured quantity, the fields that may have any value unless a claim names one; equal within a group."""
TO_COME = ("not run", "unfinished")
"""Statuses of holes that the same command still fills; any other status is an outcome."""


@dataclass(frozen=True)
class Comparison:
    """Cells of one model by role and seed, alike except for their roles."""

    model: str
    results: Mapping[str, Mapping[int, CellResult]]
    holes: Mapping[str, Mapping[int, Hole]]
    group: str = ""
    """The values that are equal within this group and may differ between groups."""

    def seeds(self, *roles: str) -> list[int]:
        """Return the seeds that all these roles finished, in order."""
        return sorted(set.intersection(*(set(self.results.get(role, {})) for role in roles)))

    def records(self, *roles: str) -> tuple[CellResult, ...]:
        """Return the records of the seeds that these roles have in common, role by role."""
        return tuple(self.results[role][seed] for role in roles for seed in self.seeds(*roles))

    def missing(self) -> str:
        """Say which seeds are missing, and why; "" if none is, or only a control that diverged: it shows its point."""
        why = grouped(
            (f"of {'/'.join(hole.name.split('.')[1:4])} is missing ({hole.status}: {hole.why})", seed)
            for role, holes in self.holes.items()
            if role != CONTROL or not all(hole.has_diverged for hole in holes.values())
            for seed, hole in sorted(holes.items())
        )
        return "; ".join(f"seed {', '.join(map(str, seeds))} {text}" for text, seeds in why.items())


def select(
    evidence: Evidence, scope: Scope, model: str, measured: str, *, on_gpus: bool = False
) -> tuple[Comparison, ...]:
    """Return a comparison for each group of cells that agree in the free fields and have all roles that are needed.

    If no group has, the fullest one is returned, and what it lacks gives the verdict. on_gpus: measurements on a CPU
    count as holes.
    """
    free, groups = FREE[measured], dict[tuple[Any, ...], dict[str, list[Cell]]]()
    for role, criteria in scope.roles.items():
        for cell in _matching(evidence, model, criteria, free):
            groups.setdefault(_key(cell, free), {}).setdefault(role, []).append(cell)
    for role, criteria in scope.roles.items() if measured == MEMORY else ():
        # Of bytes, a cell with streamed gradients stands in where none with kept ones was to be run. Kept never stands
        # in for streamed: that a streamed cell holds no gradients is the claim under test.
        for cell in _matching(evidence, model, {**criteria, "gradients": "streamed"}, free):
            cells = groups.setdefault(_key(cell, free), {}).setdefault(role, [])
            if all(one.gradients == "streamed" and one != cell for one in cells):
                cells.append(cell)
    made = []
    for key in sorted(groups, key=str):
        named = ", ".join(f"{name} {value}" for name, value in zip(free, key, strict=True) if value not in (None, ()))
        made.append(_comparison(evidence, Comparison(model, {}, {}, named), groups[key], on_gpus))
    needed = {
        role
        for role, criteria in scope.roles.items()
        if role != CONTROL and not (measured == MEMORY and role == "against" and is_full(criteria))
    }
    whole = [one for one in made if needed <= one.results.keys()]
    none = Comparison(model, {}, {})
    return tuple(whole) or (max(made, key=lambda one: sum(map(bool, one.results.values())), default=none),)


def is_full(criteria: Criteria) -> bool:
    """Return whether a role is the baseline in float32, whose states are those of the plan."""
    return {name: value for name, value in criteria.items() if name != "world_size"} == {"scheme": "baseline"}


def _key(cell: Cell, free: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in free)


def _matching(evidence: Evidence, model: str, criteria: Criteria, free: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells of a role: they match its criteria, and defaults in fields neither named by it nor free."""
    wanted = Cell(model=model, **criteria)
    strict = [name for name in CELL_FIELDS if name in criteria or name not in (*free, "seed")]
    for cell in evidence.by_model.get(model, []):
        if all(getattr(cell, name) == getattr(wanted, name) for name in strict):
            yield cell


def on_cpu(record: CellResult) -> bool:
    """Return whether a record was measured on a CPU, or names no device."""
    return record.provenance.get("device") in (None, "cpu")


def _comparison(evidence: Evidence, empty: Comparison, group: Mapping[str, list[Cell]], on_gpus: bool) -> Comparison:
    results: dict[str, dict[int, CellResult]] = {role: {} for role in group}
    holes: dict[str, dict[int, Hole]] = {role: {} for role in group}
    for role, cell in ((role, cell) for role, cells in group.items() for cell in cells):
        if cell in evidence.holes:
            holes[role][cell.seed] = evidence.holes[cell]
        elif on_gpus and on_cpu(evidence.results[cell]):
            holes[role][cell.seed] = Hole(cell.name, "measured on a CPU", "the claim is of GPUs", "")
        else:
            results[role][cell.seed] = evidence.results[cell]
    return replace(empty, results=results, holes=holes)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One scope of a claim, with the comparisons to judge."""

    book: Book
    claim: Claim
    scope: Scope
    comparisons: tuple[Comparison, ...]

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of this scope."""
        return self.scope.limits

    @property
    def only(self) -> Comparison:
        """The comparison of a claim about one model."""
        return self.comparisons[0]

    def published(self, role: str = "value") -> float | None:
        """Return the value that the paper states for a role; None if there is none, or these are small models."""
        one = self.claim.published.get(role)
        return one.value if one is not None and self.scope is self.claim.paper else None


def check_there(comparison: Comparison, *roles: str) -> None:
    """Raise Undecided, with the reason, unless each of these roles has a finished cell.

    A failed cell has an outcome and leaves the claim inconclusive; a cell not run yet leaves it not run.
    """
    empty = [role for role in roles if not comparison.results.get(role)]
    holes = [hole for role in empty for hole in comparison.holes.get(role, {}).values()]
    for hole in holes:
        if hole.status not in TO_COME:
            raise Undecided(f"{hole.name}: {hole.status}, {hole.why}")
    if empty:
        none = f"no cells of {comparison.model} for it ({empty[0]})"
        raise Undecided(f"{holes[0].name}: {holes[0].status}" if holes else none, NOT_RUN)


def common_seeds(comparison: Comparison, *roles: str) -> list[int]:
    """Return the seeds that all these roles finished, at least one. Raises Undecided, with the reason, if none."""
    check_there(comparison, *roles)
    if seeds := comparison.seeds(*roles):
        return seeds
    raise Undecided(f"no seed in common; {comparison.missing()}".rstrip("; "))
