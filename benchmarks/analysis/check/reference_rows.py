"""The rows of a reference: a setting's bytes, saving, metric, speed against its baseline's, and its label."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, Self

from benchmarks.analysis.labels import short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import BASELINE
from benchmarks.analysis.tables.memory_table import memory_record
from benchmarks.analysis.tables.throughput import throughput_record
from benchmarks.core.cell import Cell
from benchmarks.core.checks import wrong_fields
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from resireduce.errors import ConfigError, is_count, short

GUARDED = tuple(name for name in BYTE_FIELDS if name != "peak_resident_bytes")
"""Bytes that are compared; the resident memory of a whole process varies from run to run."""
PEAKS = ("in_flight_bytes", "peak_states_bytes")
METRIC_FIELDS = ("metric_name", "higher_is_better", "metric")
"""Fields of a row that are there together."""
SHORT_STEPS = 50
"""Fewest steps for which a run's speed and metric mean something."""
DEFAULTS = Cell(model="resnet-digits").to_dict()
"""A row names only fields that differ from these."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting with all its seeds; bytes are those of the seed and rank with most, as in the memory table."""

    setting: Cell
    """The cell with seed 0."""
    seeds: tuple[int, ...]
    parameters_bytes: int
    gradients_bytes: int
    residuals_bytes: int
    optimizer_states_bytes: int
    total_bytes: int
    in_flight_bytes: int
    peak_states_bytes: int
    baseline_total_bytes: int | None = None
    """Model states of the baseline in the same run; None if it has none."""
    throughput_ratio: float | None = None
    """Steps per second over the baseline's of the same run; None for a short run, and for a baseline."""
    metric_name: str | None = None
    higher_is_better: bool | None = None
    metric: float | None = None
    """Mean over the seeds; None for a short run."""

    def __post_init__(self) -> None:
        """Raise ConfigError, with one line, for impossible values, and for parts that do not add up to the total."""
        for name, allowed in wrong_fields(self, {"seeds": ("a list of seeds, each once", _are_seeds)}):
            raise ConfigError(f"{self.setting.name}: {name}: {short(getattr(self, name))} is not {allowed}")
        if sum(getattr(self, name) for name in STATE_FIELDS) != self.total_bytes:
            raise ConfigError(f"{self.setting.name}: total_bytes: {self.total_bytes} is not the sum of its four parts")
        if not 0 < self.total_bytes <= self.peak_states_bytes:
            raise ConfigError(
                f"{self.setting.name}: peak_states_bytes: {self.peak_states_bytes} is less than total_bytes, "
                f"{self.total_bytes}, or that is 0"
            )
        for name in ("baseline_total_bytes", "throughput_ratio"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ConfigError(f"{self.setting.name}: {name}: {value} is not more than 0")
        known = [name for name in METRIC_FIELDS if getattr(self, name) is not None]
        if known and len(known) < len(METRIC_FIELDS):
            lost = ", ".join(name for name in METRIC_FIELDS if name not in known)
            raise ConfigError(f"{self.setting.name}: {lost}: missing, though {known[0]} is there")

    @property
    def saving(self) -> float | None:
        """Share of the baseline's model states that is saved at a step boundary."""
        return 1 - self.total_bytes / self.baseline_total_bytes if self.baseline_total_bytes else None

    @property
    def peak_saving(self) -> float | None:
        """Share of the baseline's model states at a step boundary that even the fullest moment of a step saves."""
        return 1 - self.peak_states_bytes / self.baseline_total_bytes if self.baseline_total_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the setting's fields that differ from defaults, and measurements that are not None."""
        plain = self.setting.to_dict()
        cell = {name: value for name, value in plain.items() if name == "model" or value != DEFAULTS[name]}
        found = {name: value for name, value in asdict(self).items() if name not in ("setting", "seeds")}
        kept = {name: value for name, value in found.items() if value is not None}
        return {"name": self.setting.name, "cell": cell, "seeds": list(self.seeds), **kept} | (
            {} if self.saving is None else {"normalised": round(1 - self.saving, 6)}
        )

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Build a row from plain values. Raises ConfigError, with one line, if they do not form a row."""
        if not isinstance(values, dict) or not isinstance(values.get("cell"), dict):
            raise ConfigError(f"row: {str(values)[:80]!r} is not a mapping with a cell")
        setting = Cell.from_dict(values["cell"])
        if values.get("name") != setting.name:
            raise ConfigError(f"row: the name {short(values.get('name'))} is not that of its cell, {setting.name!r}")
        rest = {name: value for name, value in values.items() if name not in ("name", "cell", "normalised")}
        if not isinstance(rest.get("seeds"), list):
            raise ConfigError(f"{setting.name}: seeds: {short(rest.get('seeds'))} is not a list of seeds")
        try:
            found = cls(setting=setting, **rest | {"seeds": tuple(rest["seeds"])})
        except TypeError as error:  # a missing or unknown key
            raise ConfigError(f"{setting.name}: {str(error).split('__init__() ')[-1]}") from None
        if values.get("normalised") != (again := found.to_dict().get("normalised")):
            raise ConfigError(f"{setting.name}: normalised: {short(values.get('normalised'))}, by its bytes {again}")
        return found


def _are_seeds(seeds: tuple[int, ...]) -> bool:
    return bool(seeds) and all(map(is_count, seeds)) and len(set(seeds)) == len(seeds)


def rows_of(run: Run) -> dict[Cell, Row]:
    """Return a row for each setting of a run with a finished seed."""
    return {setting: row_of(run, setting, results) for setting, results in run.settings().items() if results}


def row_of(run: Run, setting: Cell, results: Sequence[CellResult]) -> Row:
    """Return a setting's row, computed as in the tables."""
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


QUANTITY_WORDS = {
    "saving": "saving",
    "peak_saving": "saving at the fullest moment",
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "residuals_bytes": "residuals",
    "optimizer_states_bytes": "optimizer states",
    "total_bytes": "total",
    "in_flight_bytes": "in flight",
    "peak_states_bytes": "fullest moment",
    "throughput_ratio": "speed against the baseline's",
    "metric": "metric",
    "record": "record",
}


def usual_of(settings: Iterable[Cell]) -> Cell | None:
    """Return the first baseline, which labels of others are relative to; None if there is none."""
    return next((one for one in settings if all(getattr(one, name) == BASELINE[name] for name in BASELINE)), None)


def label_of(setting: Cell, usual: Cell | None) -> str:
    """Return "w+2d, kept on vgg-digits", with the rarer fields in which a setting differs from the usual one."""
    return f"{short_labels([setting, usual or setting])[0]} on {setting.model}"


def shares(old: float, new: float) -> tuple[str, str, str]:
    """Return two shares in per cent and their distance in points, with enough digits to differ."""
    digits = next((n for n in range(1, 6) if round(100 * abs(new - old), n) > 0), 6)
    texts = [f"{100 * value:.{digits}f} %" for value in (old, new)]
    return texts[0], texts[1], f"{100 * abs(new - old):.{digits}f}"


def change_text(quantity: str, old: float, new: float) -> str:
    """Return "saving 16.4 % -> 15.9 %: 0.5 points less", or bytes with their difference."""
    word, direction = QUANTITY_WORDS[quantity], "more" if new > old else "less"
    if quantity in ("saving", "peak_saving"):
        before, after, points = shares(old, new)
        return f"{word} {before} -> {after}: {points} points {direction}"
    relative = f" ({'+' if new > old else '-'}{100 * abs(new - old) / abs(old):.3g} %)" if old else ""
    if quantity.endswith("_bytes"):
        return f"{word} {int(old):,} -> {int(new):,}: {int(abs(new - old)):,} bytes {direction}{relative}"
    return f"{word} {old:.6g} -> {new:.6g}{relative}"
