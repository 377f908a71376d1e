"""Memory against accuracy: the cost of a saving."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.states_chart import BOUNDARY, FULLEST
from benchmarks.analysis.labels import metric_value, percent
from benchmarks.analysis.table import CELL_COLUMNS, Record

MOST = 120
"""Most points of one model."""
COLUMNS = {BOUNDARY: "normalised", FULLEST: "peak_normalised"}
READING = (
    "Each point is a setting: further left holds less memory (per cent of baseline, kept); further up is better, also "
    "where a lower metric is better. The bar is the metric's 95 % interval over seeds. Full marks: gradients kept; "
    "open marks: streamed. Best is the corner at the upper left."
)


def trade_off_chart(memory: Sequence[Record], accuracy: Sequence[Record]) -> look.Specification | None:
    """Return the figure of the memory and the accuracy table's records; None if no setting has both values."""
    rows = list(_rows(memory, accuracy))
    if not rows:
        return None
    # A metric that is better when lower is drawn below zero, so that higher is better in all panels.
    up = alt.Axis(labelExpr="replace(datum.label, '\N{MINUS SIGN}', '')", grid=True)
    x = alt.X("share:Q", title="memory, % of baseline, kept").scale(zero=False, padding=look.NEAR)
    chart = alt.Chart().encode(x=x)
    points = chart.mark_point(size=85, strokeWidth=1.6, opacity=1)
    layers = [
        points.encode(
            y=alt.Y("value:Q", title=None, axis=up).scale(zero=False, padding=look.NEAR),
            **look.schemes(rows),
            **look.exact(),
        ),
        chart.mark_rule(color=look.INK, strokeWidth=1.5, opacity=0.7, aria=False).encode(y="low:Q", y2="high:Q"),
    ]
    return look.side_by_side(rows, layers, hides="series", width=330, height=210)


def _rows(memory: Sequence[Record], accuracy: Sequence[Record]) -> Iterator[look.Row]:
    shares = {_key(record): record for record in memory if record["normalised"] is not None}
    both = [
        record | {column: shares[_key(record)][column] for column in COLUMNS.values()}
        for record in accuracy
        if record["data"] == "real" and record["metric_mean"] is not None and _key(record) in shares
    ]
    for model, its in look.by_model(both).items():
        more = f", and {len(its) - MOST} more: see the tables" if len(its) > MOST else ""
        panel = f"{model}{more}\nupwards: {look.metric_words(its[0])}"
        for record, label in zip(its[:MOST], look.labels_of(its[:MOST]), strict=True):
            value, half = record["metric_mean"], record["metric_half_width"]
            sign = -1 if record["higher_is_better"] is False else 1
            spread = "" if half is None else f" ± {metric_value(half)}"
            common = {
                "model": model,
                "panel": panel,
                "series": look.series_of(record),
                "gradients": record["gradients"],
            }
            common |= {"value": sign * value, "low": sign * value - (half or 0), "high": sign * value + (half or 0)}
            for view, column in COLUMNS.items():
                tip = f"{model}, {label}\nmemory: {percent(record[column])}\n{record['metric_name']}: "
                tip += f"{metric_value(value)}{spread}\nn = {record['seeds']}"
                yield common | {"view": view, "share": 100 * record[column], "tip": tip}


def _key(record: Record) -> tuple[Any, ...]:
    """Return the fields that identify a setting in all tables."""
    return tuple(str(record[name]) for name in CELL_COLUMNS)
