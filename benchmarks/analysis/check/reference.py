"""Committed measurements: one JSON file with one setting per line, and why each change was accepted."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Self

from benchmarks.analysis.claims.evidence import fact_of
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.tables.accuracy import throughput_record
from benchmarks.analysis.tables.memory_table import memory_record
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_text
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from resireduce.errors import ConfigError, is_count

# --- The rows of a reference: a setting's bytes, metric, and speed against its baseline's ---


Row = dict[str, Any]
"""A setting: name, cell (the fields that differ from defaults), seeds; GUARDED, those of the seed and rank with most;
baseline_total_bytes, and normalised by them; of a long run throughput_ratio, and the metric, a mean over the seeds."""
GUARDED = tuple(name for name in BYTE_FIELDS if name != "peak_resident_bytes")
"""Bytes that are compared; the resident memory of a whole process varies from run to run."""
SHORT_STEPS = 50
"""Fewest steps for which a run's speed and metric mean something."""
DEFAULTS = Cell(model="resnet-digits").to_dict()


def rows_of(run: Run) -> dict[Cell, Row]:
    """Return a row for each setting of a run with a finished seed."""
    return {setting: _row_of(run, setting, results) for setting, results in run.settings().items() if results}


def _row_of(run: Run, setting: Cell, results: Sequence[CellResult]) -> Row:
    """Return a setting's row, computed as in the tables, without what is not known."""
    memory, plain = memory_record(run, setting, results), setting.to_dict()
    row: Row = {
        "name": setting.name,
        "cell": {name: value for name, value in plain.items() if name == "model" or value != DEFAULTS[name]},
        "seeds": sorted(result.cell.seed for result in results),
        **{name: memory[name] for name in (*GUARDED, "baseline_total_bytes")},
    }
    if all(result.steps >= SHORT_STEPS for result in results):
        ratio = throughput_record(run, setting, results)["ratio_to_baseline"]
        row |= {"throughput_ratio": ratio and round(ratio, 4)}
        row |= {name: getattr(results[0], name) for name in ("metric_name", "higher_is_better")}
        row |= {"metric": mean(float(result.metric or 0) for result in results)}
    known = {name: value for name, value in row.items() if value is not None}
    return known | _normalised(known)


def _normalised(row: Row) -> Row:
    whole = row.get("baseline_total_bytes")
    return {"normalised": round(row["total_bytes"] / whole, 6)} if whole else {}


# --- The file ---


FORMAT = 1
MADE_BY = "python -m benchmarks check --accept"
FACTS = ("device", "torch", "python", "cpu", "commit", "dirty")
"""Where measurements come from."""
ONE_OF = ("device", "torch")
"""Facts that decide how exactly they can be compared: all measurements of a reference, and of a run, have the same."""


@dataclass(frozen=True)
class Reference:
    """The measurements that a run is compared with."""

    path: Path
    rows: dict[Cell, Row]
    provenance: dict[str, Any]
    """FACTS of the records; a fact with several values is a list."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """For each acceptance: date, reason, commit, and lines on what changed."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a reference. Raises ConfigError, one line, for what is none, and if less would be compared with it."""
        try:
            values = load_json(path)
            if values["made_by"] != MADE_BY or values["format"] != FORMAT:
                raise ValueError(f"it is none of format {FORMAT}")
            rows = {Cell.from_dict(row["cell"]): row for row in values["rows"]}
            wrong = [row["name"] for cell, row in rows.items() if not _is_whole(cell, row)]
            if wrong or not rows or len(rows) < len(values["rows"]):
                raise ValueError(f"{(wrong or ['a row'])[0]} is there twice or is not whole")
            source = {name: values["provenance"][name] for name in FACTS}
            return cls(path, rows, source, [*values["history"]])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise ConfigError(
                f"reference: {path} cannot be compared with: {why}; restore it, or --accept one"
            ) from None

    def save(self) -> None:
        """Write it atomically, one row per line, so that a change of one setting changes one line."""
        head = {"format": FORMAT, "made_by": MADE_BY, "provenance": self.provenance, "history": self.history}
        lines = [json.dumps(row, allow_nan=False) for row in self.rows.values()]
        text = json.dumps(head, indent=1, allow_nan=False).removesuffix("\n}")
        save_text(text + ',\n "rows": [\n' + ",\n".join(f"  {line}" for line in lines) + "\n ]\n}\n", self.path)


def _is_whole(cell: Cell, row: Row) -> bool:
    """Say whether a row has the seeds and all bytes of its setting, and what follows from these."""
    adds_up = sum(row[name] for name in STATE_FIELDS) == row["total_bytes"] <= row["peak_states_bytes"]
    same = row["name"] == cell.name and row.get("normalised") == _normalised(row).get("normalised")
    return adds_up and same and is_count(row["in_flight_bytes"]) and row["seeds"] == sorted(set(row["seeds"])) != []


def provenance_of(results: Iterable[CellResult]) -> dict[str, Any]:
    """Return FACTS of records; a fact with several values gives a sorted list."""
    sources = [one.provenance | {"torch": fact_of(one.provenance, "packages: torch")} for one in results]
    found = {name: sorted({str(one.get(name)): one.get(name) for one in sources}.items()) for name in FACTS}
    return {name: [one for _, one in its] if len(its) > 1 else its[0][1] for name, its in found.items() if its}
