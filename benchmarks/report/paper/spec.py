"""What a table of the paper is made of, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cell import Cell
from benchmarks.options import thaw
from benchmarks.report.paper.quantity import METRIC, Quantity

Wanted = Mapping[str, Any]
KEPT: Wanted = {"gradients": "kept", "residual_dtype": None}
BASELINE: Wanted = {"compressor": "topk", "scheme": "baseline", "options": {}, **KEPT}
NO_COMPRESSION: Wanted = {"compressor": "none", "scheme": "none", **KEPT}
RESIREDUCE: Wanted = {"scheme": "w+2d", "options": {}, **KEPT}
USUAL_DENSITY = 0.01
SHAPE = ("world_size", "nodes", "backend", "steps", "data", "batch_per_rank", "length")
"""Fields that say how large and long a training is, not what is done to its gradients."""


@dataclass(frozen=True)
class Line:
    """A row of a table for each model, or several where cells differ in what `wanted` leaves open."""

    label: str
    wanted: Wanted
    """Values of fields of its cells."""
    quantity: Quantity = METRIC
    against: Callable[[Cell], Cell | None] | None = None
    """For a quantity that compares: the setting that a setting is compared with."""
    published: str = ""
    """Id of the published value, with {model} in it; "" if there is none."""


@dataclass(frozen=True)
class Spec:
    """A table of the paper."""

    name: str
    title: str
    reading: str
    parts: tuple[str, ...]
    """Of config/paper.yaml, whose cells it shows."""
    lines: tuple[Line, ...]
    more: Callable[[Cell], bool]
    """Which settings of a run belong to the table although the paper has no such row."""
    models: tuple[str, ...] = ()
    """Of the paper, where not all of the parts' are shown."""
    each_once: bool = False
    """Whether each model has one row: what is shown does not depend on its training."""
    compared: tuple[str, Callable[[Cell], Cell | None]] | None = None
    """A further column: heading, and the setting whose metric is subtracted, seed by seed."""
    columns: tuple[tuple[str, str], ...] = ()
    """Further columns: heading, and column of the records, a text."""
    stated: tuple[str, ...] = ()
    """Ids of published values that belong to no one row: they are said below the table."""
    panel: str = "benchmarks.report.paper.panels:values_panel"
    figure: str = ""
    notes: tuple[str, ...] = ()


def matches(setting: Cell, wanted: Wanted) -> bool:
    """Say whether a setting has the wanted values."""
    return all(_value(setting, name) == value for name, value in wanted.items())


def _value(setting: Cell, name: str) -> Any:
    return thaw(setting.options) if name == "options" else getattr(setting, name)


def against(values: Wanted) -> Callable[[Cell], Cell]:
    """Return the function that gives a setting these values, and the usual density where it sent all before."""

    def other(setting: Cell) -> Cell:
        usual = {"density": USUAL_DENSITY} if setting.compressor == "none" else {}
        return replace(setting, **{**usual, **values})

    return other
