"""One figure a table, readable in grey and without seeing colours: patterns, shapes and labels beside the data."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.cell import Cell
from benchmarks.report.labels import short_labels
from benchmarks.report.panels import INK
from benchmarks.report.table import CELL_COLUMNS, Record, Table
from resireduce.scheme import load

matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 10, "hatch.linewidth": 0.6, "svg.hashsalt": "report"})

DOTS_PER_INCH = 150
MOST_ROWS, MOST_IN_ALL = 40, 120
"""Of a panel, and of all panels of a figure; the table's CSV has all."""
LONGEST = 46
"""Characters of a row's label."""


def draw_both(table: Table) -> tuple[bytes, bytes]:
    """Return a table's figure as PNG and as SVG."""
    figure = make_figure(table)
    return to_png(figure), to_svg(figure)


def make_figure(table: Table) -> Figure:
    """Return a table's figure: a panel a model, a row a scheme, or what the table's own function draws."""
    shown = table.records if table.drawn is None else table.drawn
    if not shown:
        return _nothing()
    if table.figure:
        own: Figure = load(table.figure)(table)
        return own
    by_model: dict[str, list[Record]] = {}
    for record in shown:
        by_model.setdefault(record["model"], []).append(record)
    columns = min(2, len(by_model))
    rows = -(-len(by_model) // columns)
    limit = max(8, min(MOST_ROWS, MOST_IN_ALL // len(by_model)))
    most = min(limit, max(map(len, by_model.values())))
    figure = Figure(figsize=(5.4 * columns, rows * (0.9 + 0.27 * most) + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, (model, records) in zip(panels, by_model.items(), strict=False):
        load(table.panel)(panel, records[:limit])
        _frame(panel, model, records[:limit], more=len(records) - limit)
    for panel in panels[len(by_model) :]:
        panel.set_visible(False)
    _legend(figure, panels[0], columns=5 if columns > 1 else 3)
    return figure


def _nothing() -> Figure:
    figure = Figure(figsize=(5.4, 0.6))
    figure.text(0.02, 0.5, "nothing measured yet", va="center", style="italic", color="#666666")
    return figure


def to_png(figure: Figure) -> bytes:
    """Return a figure as PNG, the same bytes for the same figure."""
    file = BytesIO()
    _lay_out(figure)
    FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})
    return file.getvalue()


def to_svg(figure: Figure) -> bytes:
    """Return a figure as SVG, the same bytes for the same figure."""
    file = BytesIO()
    _lay_out(figure)
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _lay_out(figure: Figure) -> None:
    """Place panels and texts once: it takes as long as to draw them, and `savefig` does it each time."""
    figure.set_dpi(DOTS_PER_INCH)
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def _frame(panel: Axes, model: str, records: Sequence[Record], more: int) -> None:
    panel.set_yticks(range(len(records)), [_short(label) for label in _labels(records)])
    panel.set_ylim(len(records) - 0.4, -0.6)
    panel.set_title(model, loc="left", fontweight="bold", color=INK)
    if more > 0:
        panel.set_title(f"and {more} more: see the CSV", loc="right", fontsize=8, color=INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)


def _short(label: str) -> str:
    """Without its middle, where there would be no room left for the panel."""
    return label if len(label) <= LONGEST else f"{label[: LONGEST // 2]}…{label[-LONGEST // 2 :]}"


def _labels(records: Sequence[Record]) -> list[str]:
    """Those of the paper's lines, where the table has such, or what the settings differ in."""
    if "line" in records[0]:
        several = len({record["world_size"] for record in records}) > 1
        return [f"{one['line']}, {one['world_size']} ranks" if several else one["line"] for one in records]
    return short_labels([Cell(**{name: record[name] for name in CELL_COLUMNS}) for record in records])


def _legend(figure: Figure, panel: Axes, columns: int) -> None:
    handles, names = panel.get_legend_handles_labels()
    words = {
        "P": "P parameters",
        "G": "G gradients",
        "R": "R residuals",
        "O": "O optimizer states",
        "peak": "fullest moment of a step",
        "published": "published",
    }
    first: dict[str, Any] = {}
    for handle, name in zip(handles, names, strict=True):
        first.setdefault(name, handle)
    shown = [name for name in words if name in first]
    if shown:
        handles, names = [first[name] for name in shown], [words[name] for name in shown]
        figure.legend(handles, names, loc="outside upper center", ncols=columns, frameon=False)
