"""What a run shows of one claim."""

from dataclasses import asdict, dataclass, field
from typing import Any

STATUSES = ("reproduced", "not reproduced", "inconclusive", "not run")
SCOPES = ("paper", "small models", "none")
"""What was looked at: the paper's own models, small ones that stand in for them, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim beside what was measured; values, interval and published value are in `unit`."""

    id: str
    statement: str
    source: str
    """Where it is stated: the paper's section, experiment or figure; "ours" for this project's own."""
    status: str
    scope: str
    reason: str
    """One line: why this status, with the arithmetic; what is missing if it is not run."""
    command: str
    """What measures it, typed in the root of the project."""
    value: float | None = None
    interval: tuple[float, float] | None = None
    published: float | None = None
    unit: str | None = None
    tolerance: str | None = None
    """What counts as reproduced, in words."""
    seeds: int = 0
    """Least number of seeds of the cells compared."""
    seeds_needed: int | None = None
    """Seeds that show a true loss of zero with 80 % (`benchmarks.claims.power`); None: it is no claim of accuracy."""
    p_value: float | None = None
    """Two-sided, of the value lying where the verdict turns; None of what is no estimate."""
    p_holm: float | None = None
    """`p_value` after Holm's correction over all claims of its family that were tested."""
    holm: str | None = None
    """The status that is left by it."""
    hardware: str | None = None
    cells: tuple[str, ...] = field(default_factory=tuple)
    """Names of the cells that the value comes from."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self) | {"cells": list(self.cells), "interval": list(self.interval) if self.interval else None}
