"""Committed measurements: one JSON file with one setting per line, and why each change was accepted.

A file is checked before a run is compared with it: with gaps in it, less would be compared.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.analysis.check.reference_rows import Row, rows_of
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.table import BASELINE, SAME_WORK
from benchmarks.core.cell import Cell
from benchmarks.core.checks import all_of, first_twice, is_text
from benchmarks.core.files import load_json, save_text
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError, short

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
            check_rows(rows)
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
            run = load_run(path)  # its own measurements
            return _of_run(run)
        found = [Reference.load(file) for file in sorted(path.glob("*.json")) if _is_reference(file)]
        fitting = [one for one in found if one.device == device] or found
        if len(fitting) != 1:
            names = ", ".join(one.path.name for one in fitting) or "none"
            raise ConfigError(f"reference: {path} should hold one of device {device!r}, it has: {names}; name the file")
        return fitting[0]
    return Reference.load(path_of(path))


def _of_run(run: Run) -> Reference:
    """Return a run's own measurements. Raises ConfigError if it has none, or if they are of several setups."""
    known = provenance_of(run.results.values())
    several = [f"records of several: {name} {known[name]}" for name in ONE_OF if isinstance(known[name], list)]
    if problems := [*several, *([] if run.results else ["no records"])]:
        raise ConfigError(f"reference: {run.folder} has {problems[0]}; give a run of one setup, or a committed file")
    return Reference(run.folder, rows_of(run), known)


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
            value = known.get(name)
            # A record may have anything here, even unhashable values.
            values.add(str(value) if isinstance(value, list | dict) else value)
    return {
        name: (next(iter(values)) if len(values) == 1 else sorted(values, key=str)) if values else None
        for name, values in found.items()
    }


def _is_reference(path: Path) -> bool:
    try:
        values = load_json(path)
    except (OSError, ValueError):
        return True  # so that loading it reports what is wrong
    return isinstance(values, dict) and values.get("made_by") == MADE_BY


def check_head(values: dict[str, Any]) -> None:
    """Raise ConfigError, with one line, for anything but the rows that --accept would not have written."""
    version, provenance, history = (values.get(name) for name in ("format", "provenance", "history"))
    if version is True or not isinstance(version, int) or version != FORMAT or values.keys() != KEYS:
        names = ", ".join(sorted(map(str, KEYS ^ values.keys())))
        more = f", and its keys differ by {names}" if names else ""
        raise ConfigError(f"has format {short(version)}{more}; this code reads {FORMAT}")
    if not isinstance(provenance, dict) or provenance.keys() != set(FACTS):
        raise ConfigError(f"provenance: {str(provenance)[:80]!r} is not a mapping of {', '.join(FACTS)}")
    for name in ONE_OF:
        if not is_text(provenance[name]):
            raise ConfigError(f"provenance: {name}: {short(provenance[name])} is not a text")
    if not all_of(history, dict) or not history:
        raise ConfigError(f"history: {str(history)[:80]!r} is not a list of at least one acceptance")
    if not isinstance(values["rows"], list) or not values["rows"]:
        raise ConfigError(f"rows: {str(values['rows'])[:80]!r} is not a list of at least one setting")


def check_rows(rows: Sequence[Row]) -> None:
    """Raise ConfigError, with one line, for a setting that is there twice, or has not the bytes of its baseline."""
    if twice := first_twice(row.setting for row in rows):
        raise ConfigError(f"{twice.name} is there twice")
    baselines = [row for row in rows if all(getattr(row.setting, name) == value for name, value in BASELINE.items())]
    for row in rows:
        allowed = _totals(row, baselines)
        if allowed and row.baseline_total_bytes not in allowed:
            raise ConfigError(
                f"{row.setting.name}: baseline_total_bytes: {row.baseline_total_bytes} is not the total of its "
                f"baseline, {allowed[0]}"
            )


def _totals(row: Row, baselines: Sequence[Row]) -> list[int]:
    """Return the bytes of the baselines nearest to a setting, chosen as for tables."""
    own = row.setting
    like = [one for one in baselines if all(getattr(one.setting, name) == getattr(own, name) for name in SAME_WORK)]
    far = [(one.setting.steps != own.steps, abs(one.setting.density - own.density)) for one in like]
    return [one.total_bytes for one, distance in zip(like, far, strict=True) if distance == min(far)]
