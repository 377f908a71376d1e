"""What a table of the paper is made of; `benchmarks.analysis.paper.load_specs` reads it from paper/tables.yaml."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.analysis.paper.quantity import METRIC, Quantity
from benchmarks.core.cell import Cell
from benchmarks.core.scheme_options import thaw

Wanted = Mapping[str, Any]
"""Fields of a cell and their values; of a list any one will do."""
USUAL_DENSITY = 0.01
SHAPE = ("world_size", "nodes", "backend", "steps", "data", "batch_per_rank", "length")
"""Fields that say how large and long a training is, not what is done to its gradients."""


@dataclass(frozen=True)
class Line:
    """A row of a table for each model, or several where cells differ in what `wanted` leaves open."""

    label: str
    wanted: Wanted
    quantity: Quantity = METRIC
    against: Callable[[Cell], Cell] | None = None
    """For a quantity that compares: the setting that a setting is compared with."""
    published: str = ""
    """Id of the published value, with {model} and {part} in it; "" if there is none."""


@dataclass(frozen=True)
class Spec:
    """A table of the paper."""

    name: str
    title: str
    reading: str
    parts: tuple[str, ...]
    """Parts of config/paper.yaml, whose cells it shows."""
    lines: tuple[Line, ...]
    more: tuple[Wanted, ...]
    """Which settings of a run belong to the table although the paper has no such row: any of these,"""
    but: tuple[Wanted, ...] = ()
    """and none of these."""
    models: tuple[str, ...] = ()
    """Models of the paper, where not all of the parts' are shown."""
    each_once: bool = False
    """Whether each model has one row: what is shown does not depend on its training."""
    compared: tuple[str, Callable[[Cell], Cell]] | None = None
    """A further column: heading, and the setting whose metric is subtracted, seed by seed."""
    extra: str = ""
    """The function from the results of a row's setting to further columns of its record, as "module:function"."""
    columns: tuple[tuple[str, str], ...] = ()
    """Further columns: heading, and column of the records, a text."""
    stated: tuple[str, ...] = ()
    """Ids of published values that belong to no one row: they are said below the table."""
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
    """Return a setting with these values, and the usual density where it sent all before."""
    usual = {"density": USUAL_DENSITY} if setting.compressor == "none" else {}
    return replace(setting, **{**usual, **values})
