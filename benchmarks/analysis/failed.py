"""What the record of a failed cell is worth: whose it is, and whether it shows that its training ended as it says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.sound import of_another_cell
from benchmarks.core.cell import Cell
from benchmarks.core.record import STATUSES, CellResult, RecordError
from benchmarks.core.sample_counts import planned_steps
from resireduce.errors import is_count

OUTCOMES = ("diverged", "oom", "timeout")
"""Statuses that say something of the cell itself; the others are mishaps of its run."""
FAILURES = tuple(status for status in STATUSES if status != "ok")


def load_failed(path: Path, cell: Cell) -> CellResult:
    """Read the record that a cell left as it failed.

    Raises RecordError, one line, for what is no record, of another cell, or of one that did not fail, and OSError,
    FileNotFoundError among them.
    """
    path.stat()
    record = CellResult.load(path)
    if record.cell != cell:
        raise RecordError(f"cell: it is of another cell, {record.cell.name}; delete it and run again")
    if record.status == "ok":
        raise RecordError(f"status: 'ok' is not allowed here; allowed: {', '.join(FAILURES)}; delete it and run again")
    return record


def unproven(record: CellResult) -> str:
    """Return in one line why a record does not show that its cell diverged; "" if it does.

    A divergence decides claims as a metric does, so it needs what each training leaves that diverged. Of other statuses
    nothing is asked: they leave claims open.
    """
    if record.status != "diverged":
        return ""
    return next((problem for check in (_origin, _moment) for problem in check(record)), "")


def _origin(record: CellResult) -> Iterator[str]:
    if not isinstance(record.provenance.get("content"), dict) or "cell" not in record.provenance["content"]:
        yield "provenance: its content, with the cell it was run for, is missing"
    yield from of_another_cell(record)
    if not record.provenance.get("device"):
        yield "provenance: device: missing"
    ranks = [rank.get("status") for rank in record.per_rank]
    if len(ranks) != record.cell.world_size or "diverged" not in ranks:
        yield f"per_rank: needs {record.cell.world_size} ranks, and one of them diverged"


def _moment(record: CellResult) -> Iterator[str]:
    """Check the step in which it ended: the one after its last whole step, or that one's evaluation."""
    step: Any = record.failure.get("step")
    planned, at_least = planned_steps(record.cell)
    if not is_count(step) or step < 1 or step not in (record.steps, record.steps + 1):
        yield f"failure: step: {step!r} is not the one after the {record.steps} steps that it finished"
    if planned is not None and record.steps > planned and not at_least:
        yield f"steps: {record.steps}, its cell and recipe have {planned}"
