"""The specification of a table of the paper; `benchmarks.analysis.paper.load_specs` reads it from paper/tables.yaml."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.analysis.paper.quantity import METRIC, Quantity
from benchmarks.core.cell import Cell
from benchmarks.core.scheme_options import thaw

Wanted = Mapping[str, Any]
"""Fields of a cell and their values; a list means any of its values."""
USUAL_DENSITY = 0.01
SHAPE = ("world_size", "nodes", "backend", "steps", "data", "batch_per_rank", "length")
"""Fields for the size and length of a training, which do not affect how its gradients are treated."""


@dataclass(frozen=True)
class Line:
    """A row of a table for each model, or several if cells differ in fields that `wanted` leaves open."""

    label: str
    wanted: Wanted
    quantity: Quantity = METRIC
    against: Callable[[Cell], Cell] | None = None
    """For a quantity that compares: maps a setting to the one that it is compared with."""
    published: str = ""
    """Id of the published value, with placeholders {model} and {part}; "" if there is none."""


@dataclass(frozen=True)
class Spec:
    """A table of the paper."""

    name: str
    title: str
    reading: str
    parts: tuple[str, ...]
    """Parts of config/paper.yaml whose cells the table shows."""
    lines: tuple[Line, ...]
    more: tuple[Wanted, ...]
    """Settings of a run that belong to the table although the paper has no such row: those that match any of these,"""
    but: tuple[Wanted, ...] = ()
    """and none of these."""
    models: tuple[str, ...] = ()
    """The models to show, if not all of the parts' models."""
    each_once: bool = False
    """Whether each model has only one row, because the values do not depend on its training."""
    compared: tuple[str, Callable[[Cell], Cell]] | None = None
    """A further column: its heading, and the setting whose metric is subtracted, seed by seed."""
    extra: str = ""
    """Function from the results of a row's setting to further columns of its record, as "module:function"."""
    columns: tuple[tuple[str, str], ...] = ()
    """Further columns: heading, and the text column of the records."""
    stated: tuple[str, ...] = ()
    """Ids of published values that belong to no single row; they are stated below the table."""
    figure: str = "benchmarks.analysis.charts.rows_chart:values_chart"
    notes: tuple[str, ...] = ()


def matches(setting: Cell, wanted: Wanted) -> bool:
    """Say whether a setting has the wanted values."""
    return all(_fits(setting, name, value) for name, value in wanted.items())


def _fits(setting: Cell, name: str, value: Any) -> bool:
    if name == "options":
        return bool(thaw(setting.options) == value)
    if name == "observe":
        return set(value) <= set(setting.observe)
    return getattr(setting, name) in value if isinstance(value, list) else bool(getattr(setting, name) == value)


def other(values: Wanted, setting: Cell) -> Cell:
    """Return the setting with these values, and with the usual density if it was without compression."""
    usual = {"density": USUAL_DENSITY} if setting.compressor == "none" else {}
    return replace(setting, **{**usual, **values})
