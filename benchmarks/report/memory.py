"""The memory table: bytes of one rank's model states, at a step boundary and at the fullest moment of a step."""

from collections.abc import Sequence

from benchmarks.cell import Cell
from benchmarks.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from benchmarks.report.labels import mebibytes, percent, short_labels
from benchmarks.report.load import Run
from benchmarks.report.table import Record, Table, baseline_results, hole_text, setting_record

HEAD = ["P", "G", "R", "O", "Total", "Normalised", "In flight", "Peak normalised"]
COLUMNS = (*STATE_FIELDS, "total_bytes", "normalised", "in_flight_bytes", "peak_normalised")
READING = (
    "MiB of one rank: parameters P, gradients G, residuals R, optimizer states O, held at a step boundary; in flight: "
    "dense gradients and messages beside them at the fullest moment of a step. 100 % is the total of top-k with full "
    "residual and kept gradients (baseline, kept). Lower is better."
)


def memory(run: Run) -> Table:
    """Return the memory table of a run."""
    settings = run.settings()
    records = [memory_record(run, setting, results) for setting, results in settings.items()]
    every = list(settings)
    place = {model: number for number, model in enumerate(dict.fromkeys(setting.model for setting in every))}
    # Rows of one model stay together, models in the order in which the matrix names them.
    order = sorted(range(len(every)), key=lambda i: place[every[i].model])
    cells = [every[i] for i in order]
    labels = short_labels(cells)
    starts = tuple(i for i, cell in enumerate(cells) if i == 0 or cell.model != cells[i - 1].model)
    body, first = [], set(starts)
    for row, (cell, label) in enumerate(zip(cells, labels, strict=True)):
        body.append([cell.model if row in first else "", label, *_view(run, cell, records[order[row]])])
    return Table(
        name="memory",
        title="Memory",
        reading=READING,
        records=[records[i] for i in order],
        head=["Model", "Scheme, gradients", *HEAD],
        body=body,
        panel="benchmarks.report.panels:memory_panel",
        text_columns=2,
        group_starts=starts,
        columns=("model", "scheme", *COLUMNS),
    )


def memory_record(run: Run, setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return a setting's bytes, the largest over its seeds, and their ratios to its baseline's total."""
    record = setting_record(setting, results)
    for name in BYTE_FIELDS:
        record[name] = max((getattr(result, name) for result in results), default=None)
    baseline = baseline_results(run, setting, same=("model", "world_size", "backend"))
    whole = max((int(result.total_bytes or 0) for result in baseline), default=None)
    record["baseline_total_bytes"] = whole
    known = bool(results) and bool(whole)
    record["normalised"] = record["total_bytes"] / whole if known else None
    record["peak_normalised"] = record["peak_states_bytes"] / whole if known else None
    return record


def _view(run: Run, setting: Cell, record: Record) -> list[str]:
    if not record["seeds"]:
        return [*[""] * 4, hole_text(run, setting), *[""] * 3]
    states = [mebibytes(record[name]) for name in (*STATE_FIELDS, "total_bytes")]
    peak = [mebibytes(record["in_flight_bytes"]), percent(record["peak_normalised"])]
    return [*states, percent(record["normalised"]), *peak]
