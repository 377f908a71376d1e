"""Figures of the paper that are curves: over the share stored, over steps and time, over the number of GPUs."""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report.panels import INK
from benchmarks.report.paper.panels import PUBLISHED
from benchmarks.report.table import Record, Table

STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#37474f", "linestyle": "-", "marker": "o"},
    {"color": "#cc4125", "linestyle": "--", "marker": "s"},
    {"color": "#0072b2", "linestyle": "-.", "marker": "^"},
    {"color": "#e69f00", "linestyle": ":", "marker": "v"},
    {"color": "#009e73", "linestyle": "-", "marker": "x"},
    {"color": "#8a5a9e", "linestyle": "--", "marker": "+"},
)
"""Lines differ in dash and mark too: for print in grey, and for those who see no colours."""
MOST_LINES = len(STYLES)
"""Of a panel; the table's CSV has all."""
NOTHING = "nothing measured yet"


def draw_shares(table: Table) -> Figure:
    """Return Fig. 3: a panel a model, the metric over the share of the residuals that is stored."""

    def panel(axes: Axes, records: Sequence[Record]) -> None:
        known = sorted((share(one), one["measured"], one["measured_half_width"]) for one in records if _has(one))
        if known:
            shares, values, halves = zip(*known, strict=True)
            style = STYLES[0] | {"linestyle": "-", "label": "measured"}
            axes.errorbar(shares, values, [half or 0 for half in halves], capsize=3, markersize=5, **style)
        for one in records:
            if one["published"] is not None:
                axes.plot(share(one), one["published"], linestyle="none", label="published", **PUBLISHED)
        axes.set_xlabel("residuals stored, %")
        axes.set_ylabel(_metric(records))
        _legend(axes)

    return _figure(table, [panel])


def share(record: Record) -> float:
    """Return the per cent of the residuals that a record's setting stores."""
    return 100.0 if record["scheme"] == "baseline" else 100 * float(record["options"].get("ratio", 0.5))


def draw_convergence(table: Table) -> Figure:
    """Return Fig. 10: for each model the metric over the steps, and over the hours of training."""

    def panel(over: str) -> Callable[[Axes, Sequence[Record]], None]:
        def draw(axes: Axes, records: Sequence[Record]) -> None:
            shown = [record for record in records if record["curve"] and record["steps_taken"]][:MOST_LINES]
            for record, style in zip(shown, cycle(STYLES), strict=False):
                steps, values = zip(*record["curve"], strict=True)
                scale = record["hours"] / record["steps_taken"] if over == "hours" else 1
                every = max(1, len(steps) // 12)
                hours = [step * scale for step in steps]
                axes.plot(hours, values, markevery=every, label=record["line"], **_thin(style))
            axes.set_xlabel(over)
            axes.set_ylabel(_metric(records))
            _limits(axes, records)
            _legend(axes)

        return draw

    return _figure(table, [panel("steps"), panel("hours")])


def draw_throughput(table: Table) -> Figure:
    """Return Fig. 11: a panel a model, images or tokens per second over the number of ranks."""

    def panel(axes: Axes, records: Sequence[Record]) -> None:
        lines: dict[str, list[tuple[int, float]]] = {}
        for record in records:
            if record["throughput"] is not None:
                lines.setdefault(record["line"], []).append((record["world_size"], record["throughput"]))
        for (line, points), style in zip(list(lines.items())[:MOST_LINES], cycle(STYLES), strict=False):
            ranks, speeds = zip(*sorted(points), strict=True)
            axes.plot(ranks, speeds, label=line, **_thin(style))
        if lines:
            axes.set_ylim(bottom=0)
            axes.set_xticks(sorted({ranks for points in lines.values() for ranks, _ in points}))
        axes.set_xlabel("ranks")
        axes.set_ylabel(f"{next((one['throughput_unit'] for one in records if one['throughput_unit']), 'samples')} / s")
        _legend(axes)

    return _figure(table, [panel])


def _figure(table: Table, panels: Sequence[Callable[[Axes, Sequence[Record]], None]]) -> Figure:
    """A row of panels for each model, two models in a row where each has one panel."""
    by_model: dict[str, list[Record]] = {}
    for record in table.drawn or []:
        by_model.setdefault(record["model"], []).append(record)
    columns = max(2, len(panels))
    rows = -(-len(by_model) * len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    pairs = [(draw, model) for model in by_model for draw in panels]
    for one, (draw, model) in zip(axes, pairs, strict=False):
        draw(one, by_model[model])
        one.set_title(model, loc="left", fontweight="bold", color=INK)
        one.spines[["top", "right"]].set_visible(False)
        one.grid(color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
    for one in axes[len(pairs) :]:
        one.set_visible(False)
    return figure


def _has(record: Record) -> bool:
    return record["measured"] is not None


def _thin(style: dict[str, Any]) -> dict[str, Any]:
    return {"linewidth": 1.3, "markersize": 4.5, **style}


def _metric(records: Sequence[Record]) -> str:
    first = records[0]
    return str(first["metric_name"] or first["unit"] or "metric")


def _limits(axes: Axes, records: Sequence[Record]) -> None:
    """Perplexity begins far above where it ends: show the last part of it."""
    ends = [record["measured"] for record in records if _has(record)]
    if ends and records[0]["higher_is_better"] is False:
        axes.set_ylim(0.97 * min(ends), 1.6 * max(ends))


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        axes.annotate(NOTHING, (0.5, 0.5), xycoords="axes fraction", ha="center", style="italic", color="#666666")
        return
    first = dict(zip(labels, handles, strict=True))
    axes.legend(first.values(), first.keys(), fontsize=7, frameon=False)
