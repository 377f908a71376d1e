"""The table of moments: what fills the fullest moment of a step. Its figure shows that step's memory over time."""

from collections.abc import Sequence

from benchmarks.analysis.grouping import starts_of, together
from benchmarks.analysis.labels import mebibytes, percent, short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Record, Table, setting_record
from benchmarks.core.cell import Cell
from benchmarks.core.moments import BANDS, unpack_moments
from benchmarks.core.record import CellResult

HEAD = ["Between steps", "At the fullest", "P", "O", "R", "Gradients", "Messages", "Where"]
READING = (
    "MiB of one rank: model states between steps, and at the fullest moment of a step, and what that is made of: "
    "parameters P, optimizer states O, residuals R, gradients and averages, selections and messages. Where: how much "
    "of the step's operations lies before it. The figure has the whole step, from the start of its backward pass, over "
    "operations, not seconds, and in each title the fullest moment; activations are not counted. Lower is better."
)
OLDER = "Settings that are not here, because their records are from before a step was followed: {}."


def moments(run: Run) -> Table:
    """Return the table of a run, a row for each setting with a followed step; empty if there is none."""
    settings = together((setting.model, setting) for setting in run.settings())
    fullest = {cell: _fullest(run.settings()[cell]) for cell in settings}
    shown = {cell: result for cell, result in fullest.items() if result is not None and result.moments}
    older = sum(result is not None for result in fullest.values()) - len(shown)
    records = [_record(cell, run.settings()[cell], result) for cell, result in shown.items()]
    starts = starts_of([cell.model for cell in shown])
    body = [
        [record["model"] if i in starts else "", label, *_view(record)]
        for i, (label, record) in enumerate(zip(short_labels(list(shown)), records, strict=True))
    ]
    return Table(
        name="moments",
        title="Memory over one step",
        reading=READING,
        records=records,
        head=["Model", "Scheme, gradients", *HEAD],
        body=body,
        figure="benchmarks.analysis.charts.moments_chart:moments_chart",
        text_columns=2,
        group_starts=starts,
        notes=[OLDER.format(older)] if older and records else [],
        drawn=[
            record | {"points": unpack_moments(result.moments)}
            for record, result in zip(records, shown.values(), strict=True)
        ],
        columns=("model", "scheme", "total_bytes", "peak_states_bytes", *_columns(), "where"),
    )


def _fullest(results: Sequence[CellResult]) -> CellResult | None:
    """Return the seed that holds most at its fullest moment; among equals one whose step was followed."""
    return max(results, key=lambda one: (one.peak_states_bytes or 0, bool(one.moments)), default=None)


def _record(setting: Cell, results: Sequence[CellResult], result: CellResult) -> Record:
    """Return the columns of a setting: bytes of each band at the fullest moment, and where in the step it is."""
    points = unpack_moments(result.moments)
    place = max(range(len(points)), key=lambda i: sum(points[i]))
    held = dict(zip(_columns(), points[place], strict=True))
    common = setting_record(setting, results) | {"seed": result.cell.seed}
    common |= {name: getattr(result, name) for name in ("total_bytes", "peak_states_bytes")}
    return common | held | {"where": place / max(1, len(points) - 1), "changes": result.moments["changes"]}


def _columns() -> list[str]:
    return [f"peak_{name}_bytes" for name in BANDS]


def _view(record: Record) -> list[str]:
    names = ("total_bytes", "peak_states_bytes", *_columns())
    return [*(mebibytes(record[name]) for name in names), percent(record["where"])]
