"""Panels of the paper's tables: measured beside published, readable in grey."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from benchmarks.report.panels import INK, beside
from benchmarks.report.paper import quantity as quantities
from benchmarks.report.table import Record

WORDS = {one.name: one.words for one in vars(quantities).values() if isinstance(one, quantities.Quantity)}
PUBLISHED: dict[str, Any] = {"marker": "D", "markersize": 6.5, "markerfacecolor": "none", "markeredgecolor": "#cc4125"}
"""An open diamond; what is measured is a full circle or a bar."""


def values_panel(panel: Axes, records: Sequence[Record]) -> None:
    """Draw the measured mean with its interval, and the published value as an open diamond."""
    for row, record in enumerate(records):
        if record["measured"] is not None:
            half = record["measured_half_width"]
            panel.errorbar(record["measured"], row, xerr=half, fmt="o", color=INK, markersize=5, capsize=3)
        _texts(panel, row, record)
    _published(panel, records)
    panel.margins(x=0.08)
    _axis(panel, records)


def bars_panel(panel: Axes, records: Sequence[Record]) -> None:
    """Draw bars from zero, hatched where gradients are streamed; the published value is an open diamond."""
    for row, record in enumerate(records):
        if record["measured"] is not None:
            hatch = "////" if record["gradients"] == "streamed" else ""
            panel.barh(row, record["measured"], 0.7, color="#a8d0e6", hatch=hatch, edgecolor=INK, linewidth=0.6)
        _texts(panel, row, record)
    _published(panel, records)
    panel.axvline(0, color=INK, linewidth=0.8)
    _axis(panel, records)


def _texts(panel: Axes, row: int, record: Record) -> None:
    if record["measured"] is None:
        words = record["missing"] or "no value"
        panel.annotate(words, (0.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8, style="italic")
    else:
        beside(panel, row, 38, f"{record['measured']:.2f}")


def _published(panel: Axes, records: Sequence[Record]) -> None:
    """Only in the unit of what is measured: sizes are stated in MB and GB."""
    for row, record in enumerate(records):
        if record["published"] is not None and record["published_unit"] == record["unit"]:
            panel.plot(record["published"], row, linestyle="none", label="published", zorder=3, **PUBLISHED)


def _axis(panel: Axes, records: Sequence[Record]) -> None:
    known = [one["measured"] for one in records] + [one["published"] for one in records]
    if all(value is None for value in known):
        panel.set_xlim(0, 1)
    first = records[0]
    words = WORDS[first["quantity"]]
    if first["quantity"] == quantities.METRIC.name:
        words = first["metric_name"] or first["unit"] or words
    better = {True: "   higher is better →", False: "   ← lower is better"}.get(first["higher_is_better"], "")
    panel.set_xlabel(f"{words}{better}")
