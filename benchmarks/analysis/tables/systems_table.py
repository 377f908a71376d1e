"""The table of systems: the parts of a run's config beside one another, as in docs/systems.md."""

from benchmarks.analysis.grouping import starts_of, together
from benchmarks.analysis.labels import metric_heading
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.summaries import (
    BASELINE,
    COLUMNS,
    DENSE,
    are_systems,
    links_words,
    system_texts,
    systems_rows,
)
from benchmarks.analysis.table import Record, Table

READING = (
    "Each part of the config as one system. Metric and Lost: mean over seeds ± half of its 95 % interval; lost is by "
    "how much the metric is worse than without compression, seed by seed, and a minus says that it was better. Sent: "
    "of how many elements of compressed tensors anything was sent, the median of the steps that rank 0 looked at; KiB "
    "a step: what a rank hands to collectives, small dense tensors and all. ms a step: the median of steps. Held "
    "between steps, at the fullest: model states of one rank, as a share of what the part called baseline holds "
    "between steps. Lower is better, of all but the metric."
)


def systems(run: Run) -> Table:
    """Return the table of systems of a run; empty if its parts are not systems, or nothing has finished."""
    rows = systems_rows(run) if are_systems(run) else []
    records: list[Record] = together((row["model"], row) for row in rows)
    starts = starts_of([row["model"] for row in records])
    body = [[metric_heading(row) if i in starts else "", *system_texts(row)] for i, row in enumerate(records)]
    return Table(
        name="systems",
        title="Systems beside one another",
        reading=READING,
        records=records,
        head=["Model, metric", *COLUMNS],
        body=body,
        figure="benchmarks.analysis.charts.rivals_chart:systems_chart",
        text_columns=2,
        group_starts=starts,
        notes=_notes(run, records) if records else [],
        terms=tuple({row["title"]: row["about"] for row in records if row["about"] != row["system"]}.items()),
        columns=("model", *COLUMNS.values()),
    )


def _notes(run: Run, records: list[Record]) -> list[str]:
    """Return notes on systems without a finished cell, how slow links were, and which comparisons are missing."""
    known = {(row["system"], row["model"]) for row in records}
    models = {name: dict.fromkeys(cell.model for cell in part.cells) for name, part in run.parts.items()}
    absent = {name: [model for model in its if (name, model) not in known] for name, its in models.items()}
    listed = [f"{run.parts[name].title} ({', '.join(its)})" for name, its in absent.items() if its]
    notes = [f"Without a finished cell: {'; '.join(listed)}."] if listed else []
    if links := links_words(run.results.values()):
        notes.append(f"Links between nodes slowed to: {links}.")
    if DENSE not in run.parts:
        notes.append(f"Nothing is compared with no compression: the config has no part called {DENSE}.")
    if BASELINE not in run.parts:
        notes.append(f"No shares of memory: the config has no part called {BASELINE}.")
    return notes
