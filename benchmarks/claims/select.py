"""Which cells of a run a claim compares: those of its roles, alike in all else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cell import CELL_FIELDS, Cell
from benchmarks.claims.claim import Criteria
from benchmarks.claims.evidence import Evidence
from benchmarks.record import CellResult
from benchmarks.report.load import Hole

SHAPE = ("data", "steps", "batch_per_rank", "length")
FREE: dict[str, tuple[str, ...]] = {
    "memory": ("world_size", "nodes", "backend", "observe", *SHAPE),
    "metric": ("world_size", "nodes", "backend"),
    "digits": ("world_size", "nodes", "backend", *SHAPE),
    "speed": ("world_size", "nodes", "backend", *SHAPE),
    "observation": ("world_size", "nodes", "backend", "steps"),
}
"""By what is measured: fields that may have any value, the same in all cells compared, unless a claim names one."""
TO_COME = ("not run", "unfinished")
"""Statuses of holes that the same command still fills; any other is an outcome."""


@dataclass(frozen=True)
class Comparison:
    """Cells of one model, alike but for their roles, by role and seed."""

    model: str
    results: Mapping[str, Mapping[int, CellResult]]
    holes: Mapping[str, Mapping[int, Hole]]

    def seeds(self, *roles: str) -> list[int]:
        """Return the seeds that all these roles finished, in order."""
        return sorted(set.intersection(*(set(self.results.get(role, {})) for role in roles)))

    def records(self, *roles: str) -> tuple[CellResult, ...]:
        """Return the records of the seeds that these roles have in common, role by role."""
        return tuple(self.results[role][seed] for role in roles for seed in self.seeds(*roles))

    def missing(self, *roles: str) -> str:
        """Say which seeds of these roles are missing, and why; nothing if none is."""
        texts = []
        for role in roles:
            for seed, hole in sorted(self.holes.get(role, {}).items()):
                texts.append(f"seed {seed} of {role_name(hole.name)} is missing ({hole.status}: {hole.reason})")
        return "; ".join(texts)


def role_name(name: str) -> str:
    """Return what of a cell's name says which side of a comparison it is: compressor, scheme and gradients."""
    return "/".join(name.split(".")[1:4])


def select(evidence: Evidence, model: str, roles: Mapping[str, Criteria], free: Sequence[str]) -> Comparison:
    """Return the cells of all roles that are alike in the free fields.

    Where several groups of cells are, the one that has most roles finished counts, then most seeds, then the first.
    """
    groups: dict[tuple[Any, ...], dict[str, list[Cell]]] = {}
    for role, criteria in roles.items():
        wanted = Cell(model=model, **criteria)
        strict = [name for name in CELL_FIELDS if name in criteria or name not in (*free, "seed")]
        for cell in evidence.by_model.get(model, []):
            if all(getattr(cell, name) == getattr(wanted, name) for name in strict):
                key = tuple(getattr(cell, name) for name in free)
                groups.setdefault(key, {}).setdefault(role, []).append(cell)
    best = max(groups.values(), key=lambda group: _completeness(evidence, group, roles), default={})
    return Comparison(
        model,
        {role: {c.seed: evidence.results[c] for c in cells if c in evidence.results} for role, cells in best.items()},
        {role: {c.seed: evidence.holes[c] for c in cells if c in evidence.holes} for role, cells in best.items()},
    )


def _completeness(evidence: Evidence, group: Mapping[str, list[Cell]], roles: Mapping[str, Criteria]) -> Any:
    finished = {role: {c.seed for c in group.get(role, []) if c in evidence.results} for role in roles}
    first = [seeds for role, seeds in finished.items() if role != "control"]
    common = set.intersection(*first) if first else set()
    return sum(map(bool, first)), len(common), len(finished.get("control", ())), sum(map(len, first))
