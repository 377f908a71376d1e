"""One model's panel in a table's figure: what is drawn of its records, a row each."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from benchmarks.record import STATE_FIELDS
from benchmarks.report.labels import metric_value, percent
from benchmarks.report.table import Record

STYLES = (("P", "#37474f", ""), ("G", "#e69f00", "////"), ("R", "#cc4125", "xxxx"), ("O", "#a8d0e6", "...."))
INK = "#222222"


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
    """Draw the mean metric, with its 95 % interval where there are several seeds."""
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
        error = record.get("metric_half_width") if column == "metric_mean" else None
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
