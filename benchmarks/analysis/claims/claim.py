"""A claim as data: its statement, the cells that test it, and how it is judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.analysis.published import Published

Criteria = Mapping[str, Any]
"""Fields of a cell and their values. A field not named has its default, or is free for the kind of test."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where a claim is tested: the models, the cells, the limits that decide, and the command that runs the cells."""

    statement: str
    models: tuple[str, ...]
    """Names of workloads; several are judged together. Empty if the claim has no test here."""
    roles: Mapping[str, Criteria]
    """Criteria for the cells of each role of the kind: tested, against, control."""
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
    """The paper's numbers by role: `value`, or `tested` and `against`, whose difference counts."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """The two published values behind the margin of a metric: the largest loss that the paper calls kept."""

    against: Published
    tested: Published
    percent: bool
    """Whether the loss counts in per cent of `against`, else in points."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Element counts of a model at full size, from which its states follow by arithmetic."""

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
    """All numbers of the paper, for claims of the kind consistency."""
