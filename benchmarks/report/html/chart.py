"""What the page's figures are made of. Positions are per cent of the drawing, so that text keeps its size anywhere."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from benchmarks.cell import Cell
from benchmarks.report.labels import short_labels
from benchmarks.report.table import CELL_COLUMNS, Record

MOST = 40
"""Rows of one model in a figure; the table has all."""
NO_COMPRESSION = "no compression"
SERIES = ("baseline", "w+2d", "w", "2d", "none", "a", "d", "member", "partial", NO_COMPRESSION)
"""Each has a shape and a colour of its own, in shapes.svg.j2."""


@dataclass(frozen=True)
class Mark:
    """One setting in a figure: a row with its label, or a point."""

    series: str
    """What it is shown or hidden by: its scheme."""
    label: str
    tip: str
    """The exact values, a line each; shown where it is pointed at."""
    drawing: Markup
    value: str = ""
    """At the right of a row."""


@dataclass(frozen=True)
class Panel:
    """One model in one view."""

    model: str
    view: str
    marks: list[Mark]
    ticks: list[tuple[float, str]]
    """Of the axis below: position and text."""
    axis: str
    """What it shows, with its unit, and what is better."""
    side: tuple[tuple[float, str], ...] = ()
    """Ticks of the axis at the left, from above; a row has its label there."""
    more: int = 0
    """How many settings were left out."""


@dataclass(frozen=True)
class Chart:
    """A figure: a panel for each model and view, of which one view is shown at a time."""

    name: str
    title: str
    reading: str
    panels: list[Panel]
    legend: list[tuple[str, str]]
    """(what is shown or hidden, its words)"""

    @property
    def models(self) -> list[str]:
        """Models, in the run's order."""
        return list(dict.fromkeys(panel.model for panel in self.panels))

    @property
    def views(self) -> list[str]:
        """Views, the first of which is shown."""
        return list(dict.fromkeys(panel.view for panel in self.panels))


@dataclass(frozen=True)
class Scale:
    """Maps low...high to 0...100."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], margin: float = 0.06) -> "Scale":
        """Return a scale with all values well inside."""
        found = list(values)
        low, high = min(found), max(found)
        room = (high - low or abs(high) or 1.0) * margin
        return cls(low - room, high + room)

    def at(self, value: float) -> float:
        """Return the place of a value, in per cent, to a hundredth."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Return places and texts of round numbers, at most so many."""
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        values = [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [(self.at(value), f"{value:.10g}".replace("-", "\N{MINUS SIGN}")) for value in values]


def series_of(record: Record) -> str:
    """Return what a setting is shown or hidden by."""
    return NO_COMPRESSION if record["compressor"] == "none" else str(record["scheme"])


def css_name(series: str) -> str:
    """Return a series' name as ids and classes have it."""
    return series.replace(" ", "-").replace("+", "-")


def by_model(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each model, in their order."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["model"], []).append(record)
    return found


def on_real_data(records: Sequence[Record]) -> list[Record]:
    """Return the records whose metric means something."""
    return [record for record in records if record["data"] == "real"]


def labels_of(records: Sequence[Record]) -> list[str]:
    """Return what each setting is called among the others."""
    return short_labels([Cell(**{name: record[name] for name in CELL_COLUMNS}) for record in records])


def key_of(record: Record) -> tuple[Any, ...]:
    """Return what is the same for one setting in all tables."""
    return tuple(str(record[name]) for name in CELL_COLUMNS)


def scheme_legend(panels: Iterable[Panel]) -> list[tuple[str, str]]:
    """Return the schemes that are drawn."""
    drawn = {mark.series for panel in panels for mark in panel.marks}
    return [(name, "none (no residual)" if name == "none" else name) for name in SERIES if name in drawn]
