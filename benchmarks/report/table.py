"""What a table is, and what all tables share: settings, their baseline, views by model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cell import CELL_FIELDS, Cell
from benchmarks.record import CellResult
from benchmarks.report.labels import ABSENT, short_labels
from benchmarks.report.load import Run

CELL_COLUMNS = tuple(name for name in CELL_FIELDS if name != "seed")
SAME_WORK = ("data", "batch_per_rank", "length", "released")
"""What a setting and its baseline share in any comparison."""
BASELINE = {"compressor": "topk", "scheme": "baseline", "gradients": "kept", "residual_dtype": None}

Record = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Records hold raw values, units in the column names; head and body are the view for people."""

    name: str
    title: str
    reading: str
    """How to read it: what is better."""
    records: list[Record]
    head: list[str]
    body: list[list[str]]
    panel: str
    """The function that draws one model's records, as "module:function": matplotlib is loaded only for figures."""
    figure: str = ""
    """The function that draws the whole table as a Figure, where a panel for each model does not do, likewise."""
    text_columns: int = 1
    """How many columns at the left are text."""
    group_starts: tuple[int, ...] = ()
    """Rows at which another model begins."""
    notes: list[str] = field(default_factory=list)
    drawn: list[Record] | None = None
    """What the figure shows, where that is not the records."""
    columns: tuple[str, ...] = ()
    """Of the records, what each column of body shows, "" for none; only where both have the same rows. The page sorts
    by these, and without them by the numbers that are shown."""


def setting_record(setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return the columns that every table begins with: what was run, and how many seeds of it finished."""
    plain = setting.to_dict()
    return {**{name: plain[name] for name in CELL_COLUMNS}, "seeds": len(results)}


def baseline_results(run: Run, setting: Cell, same: Sequence[str]) -> list[CellResult]:
    """Return the results of setting's baseline (top-k, full residual, kept gradients), which shares the fields same.

    Where these leave a choice, the density and steps nearest to setting's are taken, all seeds of them.
    """
    fields = (*same, *SAME_WORK)
    known = run.once(("baselines", fields), lambda: finished_by(run, fields, BASELINE))
    nearest = min(
        known.get(tuple(getattr(setting, name) for name in fields), []),
        key=lambda other: (other.steps != setting.steps, abs(other.density - setting.density)),
        default=None,
    )
    return run.settings()[nearest] if nearest else []


def finished_by(run: Run, fields: Sequence[str], wanted: dict[str, Any]) -> dict[tuple[Any, ...], list[Cell]]:
    """Return the settings that have results and the wanted values, by their values of fields."""
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for setting, results in run.settings().items():
        if results and all(getattr(setting, name) == value for name, value in wanted.items()):
            found.setdefault(tuple(getattr(setting, name) for name in fields), []).append(setting)
    return found


def by_model(run: Run, texts: dict[Cell, str], headings: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    """Return head and body of a view with a row a scheme and a column a model; a missing cell shows its status."""
    settings = list(texts)
    labels = short_labels(settings)
    models = list(dict.fromkeys(setting.model for setting in settings))
    shown = {(label, setting.model): texts[setting] for label, setting in zip(labels, settings, strict=True)}
    body = [[label, *(shown.get((label, model), ABSENT) for model in models)] for label in dict.fromkeys(labels)]
    return ["Scheme, gradients", *(headings.get(model, model) for model in models)], body


def hole_text(run: Run, setting: Cell) -> str:
    """Return the status of a setting of which no seed finished: the first missing cell's."""
    hole = run.hole_of(setting)
    return hole.status if hole else ABSENT


def cell_texts(run: Run, records: Sequence[Record], text: Callable[[Record], str]) -> dict[Cell, str]:
    """Return what a view shows for each setting: its record as text, or the status of the hole."""
    return {
        setting: text(record) if record["seeds"] else hole_text(run, setting)
        for setting, record in zip(run.settings(), records, strict=True)
    }
