"""The table type, and what all tables share: settings, their baseline, views by model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.analysis.labels import ABSENT, short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.record import CellResult

CELL_COLUMNS = tuple(name for name in CELL_FIELDS if name != "seed")
SAME_WORK = ("model", "world_size", "backend", "data", "batch_per_rank", "length", "released")
"""Fields in which a setting and its baseline must agree in any comparison."""
BASELINE = {
    "compressor": "topk",
    "scheme": "baseline",
    "gradients": "kept",
    "residual_dtype": None,
    "hierarchy": "flat",
    "merge": "none",
}

Record = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Records hold raw values, with units in the column names; head and body are the view for people."""

    name: str
    title: str
    reading: str
    """How to read the table, and which direction is better."""
    records: list[Record]
    head: list[str]
    body: list[list[str]]
    figure: str = ""
    """Function from records to the figure's specification, as "module:function"; loaded only when a figure is drawn."""
    text_columns: int = 1
    """Number of text columns at the left."""
    group_starts: tuple[int, ...] = ()
    """Rows at which another model begins."""
    notes: list[str] = field(default_factory=list)
    lacks: tuple[tuple[str, str], ...] = ()
    """What the run has no records for, each with the command that makes them; the page has one list for all tables."""
    fills: str = ""
    """Note below the table, in files and on a screen, that says how to make what is missing."""
    drawn: list[Record] | None = None
    """The records that the figure shows, if they differ from `records`."""
    columns: tuple[str, ...] = ()
    """The record key that each column of body shows, "" for none; only if both have the same rows. The page sorts by
    these values, or without them by the numbers that are shown."""

    @property
    def all_notes(self) -> list[str]:
        """Notes to print below the table where there is no list of what is missing."""
        return [*self.notes, *([self.fills] if self.fills else [])]


def setting_record(setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return the columns that every table begins with: what was run, and how many seeds of it finished."""
    plain = setting.to_dict()
    return {**{name: plain[name] for name in CELL_COLUMNS}, "seeds": len(results)}


def baseline_results(run: Run, setting: Cell) -> list[CellResult]:
    """Return the results that a setting's memory and speed are compared with: top-k, full residual, kept gradients.

    They do the same work. If several qualify, those nearest to the setting in steps and density are taken, all seeds.
    """
    nearest = min(
        finished_like(run, setting, SAME_WORK, BASELINE),
        key=lambda other: (
            other.optimizer != setting.optimizer,
            other.learning_rate != setting.learning_rate,
            other.steps != setting.steps,
            abs(other.density - setting.density),
        ),
        default=None,
    )
    return run.settings()[nearest] if nearest else []


def by_seed(results: Sequence[CellResult]) -> dict[int, float]:
    """Return the metric of each seed."""
    return {result.cell.seed: float(result.metric) for result in results if result.metric is not None}


def finished_like(run: Run, setting: Cell, same: Sequence[str], wanted: dict[str, Any]) -> list[Cell]:
    """Return the settings that have results, the `wanted` values, and the values of `setting` in the fields `same`."""
    values = {name: getattr(setting, name) for name in same} | wanted
    finished = (other for other, results in run.settings().items() if results)
    return [other for other in finished if all(getattr(other, name) == value for name, value in values.items())]


def by_model(
    run: Run, records: Sequence[Record], text: Callable[[Record], str], headings: dict[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Return head and body of a view of the records of all settings, with one row per scheme and one column per model.

    text: the text of a record; a setting of which no seed finished shows its status instead.
    """
    settings = list(run.settings())
    labels = short_labels(settings)
    models = list(dict.fromkeys(setting.model for setting in settings))
    shown = {
        (label, setting.model): text(record) if record["seeds"] else hole_text(run, setting)
        for label, setting, record in zip(labels, settings, records, strict=True)
    }
    body = [[label, *(shown.get((label, model), ABSENT) for model in models)] for label in dict.fromkeys(labels)]
    return ["Scheme, gradients", *(headings.get(model, model) for model in models)], body


def hole_text(run: Run, setting: Cell) -> str:
    """Return the status of a setting without a finished seed, taken from its first missing cell."""
    hole = run.hole_of(setting)
    return hole.status if hole else ABSENT
