"""The memory table: bytes of one rank's model states, at a step boundary and at the fullest moment of a step."""

from collections.abc import Sequence

from benchmarks.analysis.grouping import starts_of, together
from benchmarks.analysis.labels import mebibytes, percent, short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Record, Table, baseline_results, hole_text, setting_record
from benchmarks.core.cell import Cell
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult

HEAD = ["P", "G", "R", "O", "Total", "Normalised", "In flight", "Peak normalised"]
COLUMNS = (*STATE_FIELDS, "total_bytes", "normalised", "in_flight_bytes", "peak_normalised")
READING = (
    "MiB of one rank: parameters P, gradients G, residuals R, optimizer states O, held at a step boundary; in flight: "
    "dense gradients and messages beside them at the fullest moment of a step. 100 % is the total of top-k with full "
    "residual and kept gradients (baseline, kept). Lower is better."
)


def memory(run: Run) -> Table:
    """Return the memory table of a run."""
    cells = together((setting.model, setting) for setting in run.settings())
    records = [memory_record(run, cell, run.settings()[cell]) for cell in cells]
    starts = starts_of([cell.model for cell in cells])
    body = [
        [cell.model if i in starts else "", label, *_view(run, cell, record)]
        for i, (cell, label, record) in enumerate(zip(cells, short_labels(cells), records, strict=True))
    ]
    return Table(
        name="memory",
        title="Memory",
        reading=READING,
        records=records,
        head=["Model", "Scheme, gradients", *HEAD],
        body=body,
        figure="benchmarks.analysis.charts.states_chart:memory_chart",
        text_columns=2,
        group_starts=starts,
        columns=("model", "scheme", *COLUMNS),
    )


def memory_record(run: Run, setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return a setting's bytes, the largest over its seeds, and their ratios to its baseline's total."""
    record = setting_record(setting, results)
    for name in BYTE_FIELDS:
        record[name] = max((getattr(result, name) for result in results), default=None)
    baseline = baseline_results(run, setting)
    whole = max((int(result.total_bytes or 0) for result in baseline), default=None)
    record["baseline_total_bytes"] = whole
    known = bool(results) and bool(whole)
    record["normalised"] = record["total_bytes"] / whole if known else None
    record["peak_normalised"] = record["peak_states_bytes"] / whole if known else None
    return record


def _view(run: Run, setting: Cell, record: Record) -> list[str]:
    if not record["seeds"]:
        return [*[""] * 4, hole_text(run, setting), *[""] * 3]
    return [(percent if name.endswith("normalised") else mebibytes)(record[name]) for name in COLUMNS]
