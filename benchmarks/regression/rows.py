"""What is compared of a setting: its bytes, its saving, its speed against its baseline's, its metric."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, Self

from benchmarks.cell import Cell
from benchmarks.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from benchmarks.report.load import Run
from benchmarks.report.memory import memory_record
from benchmarks.report.throughput import throughput_record
from resireduce.errors import ConfigError, is_count, is_number

GUARDED = tuple(name for name in BYTE_FIELDS if name != "peak_resident_bytes")
"""Bytes that are compared: what a whole process has resident differs from run to run."""
PEAKS = ("in_flight_bytes", "peak_states_bytes")
SHORT_STEPS = 50
"""Of runs with fewer steps neither speed nor metric says anything."""
DEFAULTS = Cell(model="resnet-digits").to_dict()
"""A row names what differs from these."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting, all its seeds together; bytes are those of the seed and rank with most, as in the memory table."""

    setting: Cell
    """With seed 0."""
    seeds: tuple[int, ...]
    parameters_bytes: int
    gradients_bytes: int
    residuals_bytes: int
    optimizer_states_bytes: int
    total_bytes: int
    in_flight_bytes: int
    peak_states_bytes: int
    baseline_total_bytes: int | None = None
    """Of the baseline in the same run; None if it has none."""
    throughput_ratio: float | None = None
    """Steps per second over the baseline's of the same run; None for a short run, and for a baseline."""
    metric_name: str | None = None
    higher_is_better: bool | None = None
    metric: float | None = None
    """Mean over the seeds; None for a short run."""

    def __post_init__(self) -> None:
        """Raise ConfigError, one line, for values that cannot be, and for parts that do not add up to the total."""
        for name, allowed, right in _checks(self):
            if not right:
                raise ConfigError(f"{self.setting.name}: {name}: {getattr(self, name)!r} is not {allowed}")
        if sum(getattr(self, name) for name in STATE_FIELDS) != self.total_bytes:
            raise ConfigError(f"{self.setting.name}: total_bytes: {self.total_bytes} is not the sum of its four parts")

    @property
    def saving(self) -> float | None:
        """Share of the baseline's model states that is saved, at a step boundary."""
        return 1 - self.total_bytes / self.baseline_total_bytes if self.baseline_total_bytes else None

    @property
    def peak_saving(self) -> float | None:
        """The same at the fullest moment of a step."""
        return 1 - self.peak_states_bytes / self.baseline_total_bytes if self.baseline_total_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values: of the setting what is not the default, then what was measured; nothing that is None."""
        plain = self.setting.to_dict()
        cell = {name: value for name, value in plain.items() if name == "model" or value != DEFAULTS[name]}
        found = {name: value for name, value in asdict(self).items() if name not in ("setting", "seeds")}
        kept = {name: value for name, value in found.items() if value is not None}
        return {"name": self.setting.name, "cell": cell, "seeds": list(self.seeds), **kept} | (
            {} if self.saving is None else {"normalised": round(1 - self.saving, 6)}
        )

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Build a row from plain values. Raises ConfigError, one line, if they are none of a row."""
        if not isinstance(values, dict) or not isinstance(values.get("cell"), dict):
            raise ConfigError(f"row: {str(values)[:80]!r} is not a mapping with a cell")
        setting = Cell.from_dict(values["cell"])
        if values.get("name") != setting.name:
            raise ConfigError(f"row: the name {values.get('name')!r} is not that of its cell, {setting.name!r}")
        rest = {name: value for name, value in values.items() if name not in ("name", "cell", "normalised")}
        if not isinstance(rest.get("seeds"), list):
            raise ConfigError(f"{setting.name}: seeds: {rest.get('seeds')!r} is not a list of seeds")
        try:
            return cls(setting=setting, **rest | {"seeds": tuple(rest["seeds"])})
        except TypeError as error:  # a key that is missing or not known
            raise ConfigError(f"{setting.name}: {str(error).split('__init__() ')[-1]}") from None


def _checks(row: Row) -> list[tuple[str, str, bool]]:
    counts = [(name, "a whole number of bytes", is_count(getattr(row, name))) for name in GUARDED]
    optional = ("baseline_total_bytes", "throughput_ratio", "metric")
    return [
        *counts,
        ("seeds", "a list of seeds, each once", _are_seeds(row.seeds)),
        *((name, "a number", getattr(row, name) is None or is_number(getattr(row, name))) for name in optional),
        ("higher_is_better", "true or false", row.higher_is_better in (None, True, False)),
    ]


def _are_seeds(seeds: tuple[int, ...]) -> bool:
    return bool(seeds) and all(map(is_count, seeds)) and len(set(seeds)) == len(seeds)


def rows_of(run: Run) -> dict[Cell, Row]:
    """Return a row for each setting of a run of which a seed finished."""
    return {setting: row_of(run, setting, results) for setting, results in run.settings().items() if results}


def row_of(run: Run, setting: Cell, results: Sequence[CellResult]) -> Row:
    """Return a setting's row, by the arithmetic of the tables."""
    memory = memory_record(run, setting, results)
    long_enough = all(result.steps >= SHORT_STEPS for result in results)
    ratio = throughput_record(run, setting, results)["ratio_to_baseline"] if long_enough else None
    return Row(
        setting=setting,
        seeds=tuple(sorted(result.cell.seed for result in results)),
        **{name: memory[name] for name in (*GUARDED, "baseline_total_bytes")},
        throughput_ratio=round(ratio, 4) if ratio is not None else None,
        metric_name=results[0].metric_name if long_enough else None,
        higher_is_better=results[0].higher_is_better if long_enough else None,
        metric=mean(float(result.metric or 0) for result in results) if long_enough else None,
    )
