"""Memory against accuracy: what a saving costs."""

from collections.abc import Sequence

from markupsafe import Markup

from benchmarks.report.html.bars import BOUNDARY, FULLEST
from benchmarks.report.html.chart import (
    Chart,
    Mark,
    Panel,
    Scale,
    by_model,
    css_name,
    key_of,
    labels_of,
    on_real_data,
    scheme_legend,
    series_of,
)
from benchmarks.report.labels import metric_value, percent
from benchmarks.report.table import Record

MOST = 120
"""Points of one model."""
COLUMNS = {BOUNDARY: "normalised", FULLEST: "peak_normalised"}
READING = (
    "Each point is a setting: further left holds less memory (per cent of baseline, kept); further up is better, also "
    "where a lower metric is better. The bar is the metric's 95 % interval over seeds. Full marks: gradients kept; "
    "open marks: streamed. Best is the corner at the upper left."
)
POINT = Markup(
    '<line class="interval" x1="{x}%" x2="{x}%" y1="{low}%" y2="{high}%"/>'
    '<circle class="hit" cx="{x}%" cy="{y}%" r="11"/>'
    '<use href="#shape-{series}" class="s-{series} {gradients}" x="{x}%" y="{y}%"/>'
)


def trade_off_chart(memory: Sequence[Record], seeds: Sequence[Record]) -> Chart | None:
    """Return the figure of the memory and the seeds table's records; None if no setting has both values."""
    shares = {key_of(record): record for record in memory if record["normalised"] is not None}
    both = [
        record | {column: shares[key_of(record)][column] for column in COLUMNS.values()}
        for record in on_real_data(seeds)
        if record["metric_mean"] is not None and key_of(record) in shares
    ]
    panels = [
        _panel(model, records, view, column)
        for model, records in by_model(both).items()
        for view, column in COLUMNS.items()
    ]
    return Chart("trade-off", "Memory against accuracy", READING, panels, scheme_legend(panels)) if panels else None


def _panel(model: str, records: list[Record], view: str, column: str) -> Panel:
    shown = records[:MOST]
    across = Scale.around([100 * record[column] for record in shown])
    up = Scale.around([end for record in shown for end in _ends(record)])
    falls = shown[0]["higher_is_better"] is False
    marks = []
    for record, label in zip(shown, labels_of(shown), strict=True):
        low, value, high = (
            _height(up, end, falls) for end in (_ends(record)[0], record["metric_mean"], _ends(record)[1])
        )
        half_width = record["metric_half_width"]
        spread = f" ± {metric_value(half_width)}" if half_width is not None else ""
        tip = f"{model}, {label}\nmemory: {percent(record[column])}\n{record['metric_name']}: "
        tip += f"{metric_value(record['metric_mean'])}{spread}\nn = {record['seeds']}"
        series = css_name(series_of(record))
        drawing = POINT.format(
            x=across.at(100 * record[column]), y=value, low=low, high=high, series=series, gradients=record["gradients"]
        )
        marks.append(Mark(series_of(record), label, tip, drawing))
    side = tuple((_height(up, float(text.replace("\N{MINUS SIGN}", "-")), falls), text) for _, text in up.ticks())
    name = shown[0]["metric_name"] or "metric"
    axis = f"memory at the {view}, % of baseline, kept; upwards: {name}{' (lower is better)' if falls else ''}"
    return Panel(model, view, marks, across.ticks(), axis, side, more=len(records) - len(shown))


def _height(scale: Scale, value: float, falls: bool) -> float:
    """Place from above; better is higher."""
    place = scale.at(value)
    return place if falls else round(100 - place, 2)


def _ends(record: Record) -> tuple[float, float]:
    half_width = record["metric_half_width"] or 0
    return record["metric_mean"] - half_width, record["metric_mean"] + half_width
