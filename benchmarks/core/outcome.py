"""The outcome of one rank: how it ended, what it measured, where it ran. The launcher makes a record from all."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.core.files import load_json, save_json


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The fields that a record takes unchanged from the outcome of rank 0."""

    metric_name: str | None = None
    higher_is_better: bool | None = None
    metric: float | None = None
    """At the end of training."""
    metrics: dict[str, float] = field(default_factory=dict)
    """All metrics at the end of training, by name; `metric` is one of them."""
    metric_history: list[list[float | None]] = field(default_factory=list)
    """[step, value] pairs."""
    steps: int | None = None
    """Steps that were taken; None if training did not begin."""
    steps_per_second: float | None = None
    """After warm-up."""
    step_seconds: list[float] = field(default_factory=list)
    unit: str | None = None
    """Unit of throughput: images or tokens."""
    units_per_second: float | None = None
    """Units of all ranks, after warm-up."""
    observations: dict[str, Any] = field(default_factory=dict)
    """Rank 0's results of the cell's `observe`, as plain values by name."""
    messages: list[list[str]] = field(default_factory=list)
    """Names of the tensors that travelled together at the end of training, if the cell's `merge` asked for that."""


@dataclass(frozen=True, kw_only=True)
class Outcome(Measured):
    """One rank's outcome. Values that it did not get to measure are None or empty."""

    status: str
    """One of `benchmarks.core.record.STATUSES`."""
    reason: str | None = None
    """One line; None if the rank finished."""
    failure: dict[str, Any] = field(default_factory=dict)
    """What is known of where and how it failed, by name."""
    peak_resident_bytes: int | None = None
    """Peak resident memory of its process, if it failed; otherwise it is in `memory`."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Bytes by state, the ladder and the phases, as `training.measure` returns them."""
    baseline_bytes: int | None = None
    """Bytes of the model states that top-k with full residuals and kept gradients would hold here."""
    data_hash: str | None = None
    threads: int | None = None
    resumed_at_steps: list[int] = field(default_factory=list)
    earlier_seconds: float = 0.0
    """Wall time of the earlier runs that this one resumed."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Device, libraries and settings that it ran with."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an outcome from the file that `save` wrote."""
        return cls(**load_json(path))

    def save(self, path: Path) -> None:
        """Write the outcome to `path`, as JSON."""
        save_json(self.to_dict(), path)

    def to_dict(self) -> dict[str, Any]:
        """Return the values that are neither None nor empty, as plain values."""
        return {name: value for name, value in asdict(self).items() if value not in (None, [], {})}
