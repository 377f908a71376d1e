"""The tables of memory: model states at a step boundary, and what fills the fullest moment of a step."""

from collections.abc import Sequence

from benchmarks.analysis.grouping import starts_of, together
from benchmarks.analysis.labels import mebibytes, percent, short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Record, Table, baseline_results, hole_text, setting_record
from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import BANDS, unpack_moments
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult

# --- The memory table ---


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
    starts, body = starts_of([cell.model for cell in cells]), []
    for i, (cell, label, record) in enumerate(zip(cells, short_labels(cells), records, strict=True)):
        shown = [(percent if name.endswith("normalised") else mebibytes)(record[name]) for name in COLUMNS]
        view = shown if record["seeds"] else [*[""] * 4, hole_text(run, cell), *[""] * 3]
        body.append([cell.model if i in starts else "", label, *view])
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


# --- The table of moments ---


MOMENTS_HEAD = ["Between steps", "At the fullest", "P", "O", "R", "Gradients", "Messages", "Where"]
MOMENTS_READING = (
    "MiB of one rank: model states between steps, and at the fullest moment of a step, and what that is made of: "
    "parameters P, optimizer states O, residuals R, gradients and averages, selections and messages. Where: how much "
    "of the step's operations lies before it. The figure has the whole step, from the start of its backward pass, over "
    "operations, not seconds, and in each title the fullest moment; activations are not counted. Lower is better."
)
MOMENTS_COLUMNS = ("total_bytes", "peak_states_bytes", *(f"peak_{name}_bytes" for name in BANDS))
OLDER = "Settings that are not here, because their records are from before a step was followed: {}."


def moments(run: Run) -> Table:
    """Return the table of a run, a row for each setting with a followed step; empty if there is none."""
    settings = together((setting.model, setting) for setting in run.settings())
    # The seed that holds most at its fullest moment; among equals one whose step was followed.
    fullest = {
        setting: max(results, key=lambda one: (one.peak_states_bytes or 0, bool(one.moments)))
        for setting in settings
        if (results := run.settings()[setting])
    }
    shown = {cell: result for cell, result in fullest.items() if result.moments}
    records = [_record(cell, run.settings()[cell], result) for cell, result in shown.items()]
    starts, body = starts_of([cell.model for cell in shown]), []
    for i, (label, record) in enumerate(zip(short_labels(list(shown)), records, strict=True)):
        view = [*(mebibytes(record[name]) for name in MOMENTS_COLUMNS), percent(record["where"])]
        body.append([record["model"] if i in starts else "", label, *view])
    return Table(
        name="moments",
        title="Memory over one step",
        reading=MOMENTS_READING,
        records=records,
        head=["Model", "Scheme, gradients", *MOMENTS_HEAD],
        body=body,
        figure="benchmarks.analysis.charts.states_chart:moments_chart",
        text_columns=2,
        group_starts=starts,
        notes=[OLDER.format(len(fullest) - len(shown))] if len(shown) < len(fullest) and records else [],
        drawn=[
            record | {"points": unpack_moments(result.moments)}
            for record, result in zip(records, shown.values(), strict=True)
        ],
        columns=("model", "scheme", *MOMENTS_COLUMNS, "where"),
    )


def _record(setting: Cell, results: Sequence[CellResult], result: CellResult) -> Record:
    """Return the columns of a setting: bytes of each band at the fullest moment, and where in the step it is."""
    points = unpack_moments(result.moments)
    place = max(range(len(points)), key=lambda i: sum(points[i]))
    common = setting_record(setting, results) | {"seed": result.cell.seed}
    common |= {name: getattr(result, name) for name in MOMENTS_COLUMNS[:2]}
    common |= dict(zip(MOMENTS_COLUMNS[2:], points[place], strict=True))
    return common | {"where": place / max(1, len(points) - 1), "changes": result.moments["changes"]}
