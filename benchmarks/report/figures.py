"""One figure a table, readable in grey and without seeing colours: patterns, shapes and labels beside the data."""

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.cell import Cell
from benchmarks.record import STATE_FIELDS
from benchmarks.report.labels import metric_value, percent, short_labels
from benchmarks.report.table import CELL_COLUMNS, Record, Table
from resireduce.scheme import load

matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 10, "hatch.linewidth": 0.6, "svg.hashsalt": "report"})

STYLES = (("P", "#37474f", ""), ("G", "#e69f00", "////"), ("R", "#cc4125", "xxxx"), ("O", "#a8d0e6", "...."))
INK = "#222222"
DOTS_PER_INCH = 150
MOST_ROWS, MOST_IN_ALL = 40, 120
"""Of a panel, and of all panels of a figure; the table's CSV has all."""
LONGEST = 46
"""Characters of a row's label."""


def draw(table: Table) -> bytes:
    """Return a table's figure as PNG."""
    return to_png(make_figure(table))


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


def memory_panel(panel: Axes, records: Sequence[Record]) -> None:
    """Draw the four states as parts of a bar, in per cent of the baseline; a diamond stands at the fullest moment."""
    for row, record in enumerate(records):
        if record["normalised"] is None:
            _missing(panel, row, record)
            continue
        left = 0.0
        for name, (letter, colour, hatch) in zip(STATE_FIELDS, STYLES, strict=True):
            width = 100 * record[name] / record["baseline_total_bytes"]
            panel.barh(
                row, width, 0.72, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6, label=letter
            )
            left += width
        peak = 100 * record["peak_normalised"]
        panel.plot(peak, row, "D", color=INK, markersize=4.5, markeredgecolor="white", label="peak")
        beside(panel, row, 40, percent(record["normalised"]))
        beside(panel, row, 92, f"\N{BLACK DIAMOND} {percent(record['peak_normalised'])}")
    panel.axvline(100, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    right = max([100.0, *(100 * record["peak_normalised"] for record in records if record["peak_normalised"])])
    panel.set_xlim(0, right * 1.03)
    panel.set_xlabel("% of baseline, kept")


def accuracy_panel(panel: Axes, records: Sequence[Record]) -> None:
    """Draw the mean metric, with its standard error where there are several seeds."""
    name = next((record["metric_name"] for record in records if record["metric_name"]), "metric")
    better = {True: "higher is better →", False: "← lower is better"}.get(records[0]["higher_is_better"], "")
    _dots(panel, records, "metric_mean", metric_value)
    panel.set_xlabel(f"{name}   {better}")


def differences_panel(panel: Axes, records: Sequence[Record]) -> None:
    """Draw the mean difference to the baseline of the same seeds, with its interval, and a line where there is none."""
    name = next((record["metric_name"] for record in records if record["metric_name"]), "metric")
    for row, record in enumerate(records):
        value, half_width = record["difference_mean"], record["difference_half_width"]
        if value is None:
            _missing(panel, row, record, "nothing to compare with")
            continue
        fill = INK if record["gradients"] == "kept" else "white"
        panel.errorbar(value, row, xerr=half_width, fmt="o", color=INK, markerfacecolor=fill, markersize=6, capsize=3)
    panel.axvline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    panel.margins(x=0.06)
    panel.set_xlabel(f"{name}, difference to baseline, with 95 % interval")


def throughput_panel(panel: Axes, records: Sequence[Record]) -> None:
    """Draw the steps per second, from zero on."""
    _dots(panel, records, "steps_per_second", lambda value: f"{value:.1f}")
    panel.set_xlim(0, 1.06 * max((record["steps_per_second"] or 0 for record in records), default=0) or 1)
    panel.set_xlabel("steps per second   higher is better →")


def _dots(panel: Axes, records: Sequence[Record], column: str, text: Callable[[float], str]) -> None:
    """Draw a mark a record, full for kept gradients and open for streamed, with its value beside it."""
    values = [record[column] for record in records]
    known = [value for value in values if value is not None]
    if not known:
        panel.set_xlim(0, 1)
    for row, (record, value) in enumerate(zip(records, values, strict=True)):
        if value is None:
            _missing(panel, row, record)
            continue
        fill = INK if record["gradients"] == "kept" else "white"
        error = record.get("metric_standard_error")
        panel.errorbar(value, row, xerr=error, fmt="o", color=INK, markerfacecolor=fill, markersize=6, capsize=3)
        beside(panel, row, 40, text(value))
    for record, value in zip(records, values, strict=True):
        if value is not None and (record["scheme"], record["gradients"]) == ("baseline", "kept"):
            panel.axvline(value, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    panel.margins(x=0.06)


def beside(panel: Axes, row: int, points: float, text: str) -> None:
    """Write a value to the right of the panel, ending at so many points from it."""
    place: dict[str, Any] = {"xy": (1, row), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    panel.annotate(text, xytext=(points, 0), ha="right", va="center", fontsize=8.5, color=INK, **place)


def _missing(panel: Axes, row: int, record: Record, otherwise: str = "no baseline") -> None:
    why = "missing" if not record["seeds"] else otherwise
    panel.annotate(why, (0.01, row), xycoords=("axes fraction", "data"), va="center", style="italic", color="#666666")


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
