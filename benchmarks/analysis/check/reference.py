"""Committed measurements: one JSON file with one setting per line, and why each change was accepted.

A file is checked before a run is compared with it: with gaps in it, less would be compared."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Self

from benchmarks.analysis.labels import short_labels
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.table import BASELINE
from benchmarks.analysis.tables.accuracy import throughput_record
from benchmarks.analysis.tables.memory_table import memory_record
from benchmarks.core.cell import Cell
from benchmarks.core.checks import all_of, first_twice, is_text, wrong_fields
from benchmarks.core.files import load_json, save_text, try_json
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from resireduce.errors import ConfigError, is_count, short

# --- The rows of a reference: a setting's bytes, saving, metric, speed against its baseline's, and its label ---


GUARDED = tuple(name for name in BYTE_FIELDS if name != "peak_resident_bytes")
"""Bytes that are compared; the resident memory of a whole process varies from run to run."""
PEAKS = ("in_flight_bytes", "peak_states_bytes")
SHORT_STEPS = 50
"""Fewest steps for which a run's speed and metric mean something."""
DEFAULTS = Cell(model="resnet-digits").to_dict()
"""A row names only fields that differ from these."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting with all its seeds; bytes are those of the seed and rank with most, as in the memory table."""

    setting: Cell
    """The cell with seed 0."""
    seeds: list[int]
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
        return {"name": self.setting.name, "cell": cell, "seeds": self.seeds, **kept} | (
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
        try:
            found = cls(setting=setting, **rest)
        except TypeError as error:  # a missing or unknown key
            raise ConfigError(f"{setting.name}: {str(error).split('__init__() ')[-1]}") from None
        if values.get("normalised") != (again := found.to_dict().get("normalised")):
            raise ConfigError(f"{setting.name}: normalised: {short(values.get('normalised'))}, by its bytes {again}")
        return found


def _are_seeds(seeds: Any) -> bool:
    return isinstance(seeds, list) and bool(seeds) and all(map(is_count, seeds)) and len(set(seeds)) == len(seeds)


def rows_of(run: Run) -> dict[Cell, Row]:
    """Return a row for each setting of a run with a finished seed."""
    return {setting: _row_of(run, setting, results) for setting, results in run.settings().items() if results}


def _row_of(run: Run, setting: Cell, results: Sequence[CellResult]) -> Row:
    """Return a setting's row, computed as in the tables."""
    memory = memory_record(run, setting, results)
    long_enough = all(result.steps >= SHORT_STEPS for result in results)
    ratio = throughput_record(run, setting, results)["ratio_to_baseline"] if long_enough else None
    return Row(
        setting=setting,
        seeds=sorted(result.cell.seed for result in results),
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


def change_text(quantity: str, old: float, new: float) -> str:
    """Return "saving 16.4 % -> 15.9 %: 0.5 points less", or bytes with their difference."""
    word, direction, apart = QUANTITY_WORDS[quantity], "more" if new > old else "less", abs(new - old)
    if quantity in ("saving", "peak_saving"):
        # As many digits as tell the two apart.
        digits = next((n for n in range(1, 6) if round(100 * apart, n) > 0), 6)
        both = f"{100 * old:.{digits}f} % -> {100 * new:.{digits}f} %"
        return f"{word} {both}: {100 * apart:.{digits}f} points {direction}"
    relative = f" ({'+' if new > old else '-'}{100 * apart / abs(old):.3g} %)" if old else ""
    if quantity.endswith("_bytes"):
        return f"{word} {int(old):,} -> {int(new):,}: {int(apart):,} bytes {direction}{relative}"
    return f"{word} {old:.6g} -> {new:.6g}{relative}"


# --- Committed measurements: one JSON file with one setting per line, and why each change was accepted ---


FORMAT = 1
KEYS = {"format", "made_by", "provenance", "history", "rows"}
MADE_BY = "python -m benchmarks check --accept"
FACTS = ("device", "torch", "python", "cpu", "commit", "dirty")
"""Where measurements come from: facts that decide how exactly they can be compared, and the code."""
ONE_OF = ("device", "torch")
"""Those that decide it by themselves: all measurements of a reference, and of a run, have the same."""


@dataclass(frozen=True)
class Reference:
    """The measurements that a run is compared with."""

    path: Path
    rows: dict[Cell, Row]
    provenance: dict[str, Any]
    """FACTS of the records; a fact with several values is a list."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """For each acceptance: date, reason, commit, and lines on what changed."""

    @property
    def device(self) -> str | None:
        """The device it was measured on: cpu, or the name of a GPU."""
        found = self.provenance.get("device")
        return found if isinstance(found, str) else None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a reference. Raises ConfigError, with one line, if it is no reference, is broken, or has a row twice."""
        try:
            values = load_json(path)
        except OSError as error:
            raise ConfigError(f"reference: {path}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"reference: {path} is broken: {error}; restore it from the repository") from None
        if not isinstance(values, dict) or values.get("made_by") != MADE_BY:
            raise ConfigError(f"reference: {path} holds none; give a file that --accept wrote, or a run's folder")
        try:
            check_head(values)
            rows = [Row.from_dict(row) for row in values["rows"]]
            if twice := first_twice(row.setting for row in rows):
                raise ConfigError(f"{twice.name} is there twice")
            return cls(path, {row.setting: row for row in rows}, dict(values["provenance"]), list(values["history"]))
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"reference: {path}: {error}; restore it from the repository") from None

    def save(self) -> None:
        """Write it atomically, one row per line, so that a change of one setting changes one line."""
        head = {"format": FORMAT, "made_by": MADE_BY, "provenance": self.provenance, "history": self.history}
        lines = [json.dumps(row.to_dict(), allow_nan=False) for row in self.rows.values()]
        text = json.dumps(head, indent=1, allow_nan=False).removesuffix("\n}")
        save_text(text + ',\n "rows": [\n' + ",\n".join(f"  {line}" for line in lines) + "\n ]\n}\n", self.path)


def find_reference(path: Path, device: str | None) -> Reference:
    """Return the reference at `path`: a file (.json may be left out), a run's folder, or a folder of one file a device.

    Raises ConfigError, with one line, if there is none, or if several fit the run's device.
    """
    if path.is_dir():
        if (path / "config.json").exists() or (path / "cells").is_dir():
            return _of_run(load_run(path))  # its own measurements
        # A broken file is loaded too, which says what is wrong with it.
        known = {file: try_json(file) for file in sorted(path.glob("*.json"))}
        found = [
            Reference.load(file)
            for file, values in known.items()
            if values is None or (isinstance(values, dict) and values.get("made_by") == MADE_BY)
        ]
        fitting = [one for one in found if one.device == device] or found
        if len(fitting) != 1:
            names = ", ".join(one.path.name for one in fitting) or "none"
            raise ConfigError(f"reference: {path} should hold one of device {device!r}, it has: {names}; name the file")
        return fitting[0]
    return Reference.load(path_of(path))


def _of_run(run: Run) -> Reference:
    """Return a run's own measurements. Raises ConfigError if it has none, or if they are of several setups."""
    if problems := setup_problems(run):
        raise ConfigError(f"reference: {run.folder} has {problems[0]}; give a run of one setup, or a committed file")
    return Reference(run.folder, rows_of(run), provenance_of(run.results.values()))


def path_of(path: Path) -> Path:
    """Return the file that a path means, which may lack its suffix."""
    named = path.suffix == ".json" or path.is_file() or path.name in ("", "..")
    return path if named else path.with_name(path.name + ".json")


def provenance_of(results: Iterable[CellResult]) -> dict[str, Any]:
    """Return FACTS of records; a fact with several values gives a sorted list."""
    found: dict[str, set[Any]] = {name: set() for name in FACTS}
    for result in results:
        packages = result.provenance.get("packages")
        known = result.provenance | {"torch": packages.get("torch") if isinstance(packages, dict) else None}
        for name, values in found.items():
            # A record may have anything here, even unhashable values.
            values.add(str(known[name]) if isinstance(known.get(name), list | dict) else known.get(name))
    return {
        name: sorted(those, key=str) if len(those) > 1 else next(iter(those), None) for name, those in found.items()
    }


def setup_problems(run: Run) -> list[str]:
    """Return why the records of a run do not come from one setup."""
    known = provenance_of(run.results.values())
    several = [f"records of several: {name} {known[name]}" for name in ONE_OF if isinstance(known[name], list)]
    return [*several, *([] if run.results else ["no records"])]


def check_head(values: dict[str, Any]) -> None:
    """Raise ConfigError, with one line, for anything but the rows that --accept would not have written."""
    if values.get("format") is True or values.get("format") != FORMAT or values.keys() != KEYS:
        names = ", ".join(sorted(map(str, KEYS ^ values.keys())))
        more = f", and its keys differ by {names}" if names else ""
        raise ConfigError(f"has format {short(values.get('format'))}{more}; this code reads {FORMAT}")
    source = values["provenance"]
    checks = {
        "provenance": (isinstance(source, dict) and source.keys() == set(FACTS), f"a mapping of {', '.join(FACTS)}"),
        "history": (values["history"] and all_of(values["history"], dict), "a list of at least one acceptance"),
        "rows": (values["rows"] and isinstance(values["rows"], list), "a list of at least one setting"),
    }
    for name, (is_right, allowed) in checks.items():
        if not is_right:
            raise ConfigError(f"{name}: {str(values[name])[:80]!r} is not {allowed}")
    for name in ONE_OF:
        if not is_text(source[name]):
            raise ConfigError(f"provenance: {name}: {short(source[name])} is not a text")
