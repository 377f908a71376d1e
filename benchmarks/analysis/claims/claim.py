"""A claim as data: what is stated, which cells test it, and how it is judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.analysis.published import Published

Criteria = Mapping[str, Any]
"""Fields of a cell and their values; a field that is not named has its default, or does not matter to the kind."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where a claim is tested: cells of which models, the limits that decide, and the command that runs them."""

    statement: str
    models: tuple[str, ...]
    """Names of workloads; several are judged together. Empty: this scope has none."""
    roles: Mapping[str, Criteria]
    """What a cell of each role of the kind is: tested, against, control."""
    limits: Mapping[str, Any]
    """What counts as reproduced: the kind's own names, and `why` each limit is what it is."""
    command: str

    @property
    def on_gpus(self) -> bool:
        """Whether it names ranks, which are GPUs wherever the paper does: what a CPU measured is then no test of it."""
        return any("world_size" in criteria for criteria in self.roles.values())


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper, or one of this project's own."""

    id: str
    source: str
    kind: str
    paper: Scope
    small: Scope | None = None
    """Where the small models can show something of it."""
    published: Mapping[str, Published] = field(default_factory=dict)
    """By role what the paper states: `value`, or `tested` and `against` of which the difference counts."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """From what the margin of a metric is derived: the largest loss that the paper calls kept."""

    against: Published
    tested: Published
    percent: bool
    """Whether it counts in per cent of what is compared with, else in points."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Elements of a model at full size, from which its states follow by arithmetic."""

    parameters: int
    residuals: int
    """Those that have a residual: all but what is sent dense."""
    saved: int
    """By `w+2d`, of residuals."""
    copies: int
    """Copies of the model in the optimizer's states: 1 for momentum, 2 for Adam."""

    def total_bytes(self, *, streamed: bool = False, residuals: int | None = None) -> int:
        """Return the bytes of all states in float32, with full residuals if not said otherwise."""
        dense = self.parameters * (1 + self.copies + (not streamed))
        return 4 * (dense + (self.residuals if residuals is None else residuals))


@dataclass(frozen=True, kw_only=True)
class Book:
    """All claims, in the paper's order, and what they share."""

    claims: tuple[Claim, ...]
    margins: Mapping[str, Margin]
    """By the metric's name."""
    noise: float
    """What a margin leaves, in its unit, for the numbers of the paper being those of single runs."""
    counts: Mapping[str, Counts]
    """By the model's name."""
    stand_ins: Mapping[str, str]
    """By model of the paper the small one that stands in for it."""
    published: Mapping[str, Published]
    """All numbers of the paper, for claims of kind consistency."""
