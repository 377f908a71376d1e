"""Figures with a row per setting, and memory against accuracy."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.states_chart import BOUNDARY, FULLEST
from benchmarks.analysis.labels import ABSENT, TIMES, metric_value, percent, signed
from benchmarks.analysis.paper.spec import ALL as QUANTITIES
from benchmarks.analysis.paper.spec import METRIC
from benchmarks.analysis.table import CELL_COLUMNS, Record

# --- Figures with a row per setting ---


Text = Callable[[Record], str]


def accuracy_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of the accuracy table's records: the metric, or its paired difference from the baseline.

    None if nothing has finished on real data.
    """
    shown = [record for record in records if record["data"] == "real"]  # else the metric means nothing
    metrics = _rows(
        shown, "metric", lambda one: metric_value(one["metric_mean"]) + _spread(one, "metric"), look.metric_words
    )
    apart = _rows(
        shown,
        "difference",
        lambda one: signed(one["difference_mean"], one["metric_mean"]) + _spread(one, "difference"),
        lambda one: f"{one['metric_name']}, difference to baseline",
        reference=0.0,
    )
    rows = [row | {"view": "metric"} for row in metrics]
    return _dots([*rows, *(row | {"view": "difference to baseline"} for row in apart)])


def throughput_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of the throughput table's records; None if nothing has finished."""
    steps = [one | {"steps_mean": one["steps_per_second"]} for one in records]
    ratios = [one | {"ratio_mean": one["ratio_to_baseline"]} for one in records]
    rows = [
        *_rows(steps, "steps", lambda one: f"{one['steps_mean']:.3g}", lambda one: "steps per second"),
        *_rows(ratios, "ratio", lambda one: f"{one['ratio_mean']:.2f} {TIMES}", lambda one: "ratio to baseline, kept"),
    ]
    return _dots([row | {"view": row["axis"]} for row in rows], zero=True)


def values_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of a table of the paper: measured values with intervals, published ones as open diamonds."""
    return _dots(_paper_rows(records))


def bars_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of a table of the paper as bars from zero; None if nothing has finished."""
    return _dots(_paper_rows(records), bars=True)


def _paper_rows(records: Sequence[Record]) -> list[look.Row]:
    named = [one | {"measured_mean": one["measured"]} for one in records]

    def axis(one: Record) -> str:
        if one["quantity"] == METRIC.name:
            return look.metric_words(one | {"unit": ""})
        words = look.metric_words(one | {"metric_name": None, "unit": ""})
        return words.replace("metric", QUANTITIES[one["quantity"]].words, 1)

    return list(_rows(named, "measured", lambda one: f"{one['measured']:.2f}", axis))


def _rows(
    records: Sequence[Record], column: str, text: Text, axis: Text, reference: float | None = None
) -> Iterator[look.Row]:
    """Yield the marks of each model with a measured value; settings without one get the reason."""
    mean, half = f"{column}_mean", f"{column}_half_width"
    for model, (its, title) in look.shown_of(records, lambda one: one[mean] is not None).items():
        known = next(one for one in its if one[mean] is not None)
        plain = (one for one in its if (one["compressor"], one["scheme"], one["gradients"]) == look.BASELINE)
        base = next((one[mean] for one in plain), None) if reference is None else reference
        panel = f"{title}\n{axis(known)}"
        for place, (record, label) in enumerate(zip(its, look.labels_of(its), strict=True)):
            common = {"model": model, "panel": panel, "axis": axis(known), "row": place, "label": label}
            common |= {"series": look.series_of(record), "gradients": record["gradients"], "base": base}
            if record[mean] is None:
                yield common | {"why": record.get("missing") or ("missing" if not record["seeds"] else ABSENT)}
            else:
                width = record.get(half) or 0
                ends = {"low": record[mean] - width, "high": record[mean] + width}
                tip = f"{model}, {label}\n{axis(known)}: {text(record)}\nn = {record['seeds']}"
                yield common | ends | {"value": record[mean], "text": text(record), "tip": tip}
            # Only in the unit of the measured value: some sizes are stated in MB and GB.
            if record.get("published") is not None and record["published_unit"] == record["unit"]:
                stated = {"series": look.PUBLISHED, "gradients": "", "value": record["published"]}
                yield common | stated | {"tip": f"{model}, {label}\npublished: {record['published']:g}"}


def _dots(rows: list[look.Row], zero: bool = False, bars: bool = False) -> look.Specification | None:
    if not rows:
        return None
    chart = alt.Chart().encode(y=look.rows_axis())
    x = alt.X("value:Q", title=None).scale(zero=zero or bars, padding=look.NEAR)
    known, channels = chart.transform_filter("isValid(datum.value)"), look.schemes(rows)
    ends = chart.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5, aria=False)
    layers = [
        known.mark_point(size=75, strokeWidth=1.6, opacity=1).encode(x=x, **channels, **look.exact()),
        ends.encode(x="low:Q", x2="high:Q"),
    ]
    if bars:
        measured = known.transform_filter(f"datum.series != '{look.PUBLISHED}'")
        thick = measured.mark_bar(stroke=look.INK, strokeWidth=0.6, aria=False)
        layers.insert(0, thick.encode(x=x, fill=channels["fill"], fillOpacity=channels["fillOpacity"]))
    if any(row["base"] is not None for row in rows):
        layers.append(alt.Chart().mark_rule(**look.REFERENCE).encode(x="mean(base):Q"))
    layers.append(look.texts())
    if any("why" in row for row in rows):
        words = chart.mark_text(align="left", dx=5, aria=False)
        layers.append(words.transform_filter("datum.why").encode(x=alt.value(0), text="why:N"))
    return look.side_by_side(rows, layers, hides="series", height=alt.Step(20))


def _spread(record: Record, column: str) -> str:
    half = record[f"{column}_half_width"]
    return "" if half is None else f" ± {metric_value(half)}"


# --- Memory against accuracy: the cost of a saving ---


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
    rows = list(_trade_rows(memory, accuracy))
    if not rows:
        return None
    # A metric that is better when lower is drawn below zero, so that higher is better in all panels.
    up = alt.Axis(labelExpr="replace(datum.label, '\N{MINUS SIGN}', '')", grid=True)
    y = alt.Y("value:Q", title=None, axis=up).scale(zero=False, padding=look.NEAR)
    x = alt.X("share:Q", title="memory, % of baseline, kept").scale(zero=False, padding=look.NEAR)
    chart = alt.Chart().encode(x=x)
    points = chart.mark_point(size=85, strokeWidth=1.6, opacity=1).encode(y=y, **look.schemes(rows), **look.exact())
    ends = chart.mark_rule(color=look.INK, strokeWidth=1.5, opacity=0.7, aria=False).encode(y="low:Q", y2="high:Q")
    return look.side_by_side(rows, [points, ends], hides="series", width=330, height=210)


def _trade_rows(memory: Sequence[Record], accuracy: Sequence[Record]) -> Iterator[look.Row]:
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
            series, gradients = look.series_of(record), record["gradients"]
            common = {"model": model, "panel": panel, "series": series, "gradients": gradients}
            common |= {"value": sign * value, "low": sign * value - (half or 0), "high": sign * value + (half or 0)}
            for view, column in COLUMNS.items():
                tip = f"{model}, {label}\nmemory: {percent(record[column])}\n{record['metric_name']}: "
                tip += f"{metric_value(value)}{_spread(record, 'metric')}\nn = {record['seeds']}"
                yield common | {
                    "view": view,
                    "share": 100 * record[column],
                    "tip": tip,
                    "series": look.series_of(record),
                }


def _key(record: Record) -> tuple[Any, ...]:
    """Return the fields that identify a setting in all tables."""
    return tuple(str(record[name]) for name in CELL_COLUMNS)
