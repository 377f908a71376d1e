"""Figures with a row per setting: a dot with its interval, or a bar from zero, and published values beside it."""

from collections.abc import Callable, Iterator, Sequence

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.labels import ABSENT, TIMES, metric_value, signed
from benchmarks.analysis.paper import quantity as quantities
from benchmarks.analysis.table import Record

Text = Callable[[Record], str]


def accuracy_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of the accuracy table's records: the metric, or its paired difference from the baseline.

    None if nothing has finished on real data.
    """
    shown = [record for record in records if record["data"] == "real"]  # else the metric means nothing

    def text(one: Record) -> str:
        return metric_value(one["metric_mean"]) + _spread(one, "metric")

    def difference(one: Record) -> str:
        return signed(one["difference_mean"], one["metric_mean"]) + _spread(one, "difference")

    def axis(one: Record) -> str:
        return f"{one['metric_name']}, difference to baseline"

    rows = [row | {"view": "metric"} for row in _rows(shown, "metric", text, look.metric_words)]
    apart = _rows(shown, "difference", difference, axis, reference=0.0)
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
    return _dots(list(_paper_rows(records)))


def bars_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of a table of the paper as bars from zero; None if nothing has finished."""
    return _dots(list(_paper_rows(records)), bars=True)


def _paper_rows(records: Sequence[Record]) -> Iterator[look.Row]:
    named = [one | {"measured_mean": one["measured"]} for one in records]

    def axis(one: Record) -> str:
        is_metric = one["quantity"] == quantities.METRIC.name
        words = look.metric_words(one | {"metric_name": None if not is_metric else one["metric_name"], "unit": ""})
        return words if is_metric else words.replace("metric", quantities.ALL[one["quantity"]].words, 1)

    return _rows(named, "measured", lambda one: f"{one['measured']:.2f}", axis)


def _rows(
    records: Sequence[Record], column: str, text: Text, axis: Text, reference: float | None = None
) -> Iterator[look.Row]:
    """Yield the marks of each model with a measured value; settings without one get the reason."""
    mean, half = f"{column}_mean", f"{column}_half_width"
    for model, (its, title) in look.shown_of(records, lambda one: one[mean] is not None).items():
        known = next(one for one in its if one[mean] is not None)
        base = next((one[mean] for one in its if _is_baseline(one)), None) if reference is None else reference
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
    chart = alt.Chart().encode(y=alt.Y("label:N", title=None, sort=alt.EncodingSortField("row", op="min")))
    x = alt.X("value:Q", title=None).scale(zero=zero or bars, padding=look.NEAR)
    known, channels = chart.transform_filter("isValid(datum.value)"), look.schemes(rows)
    marks = known.mark_point(size=75, strokeWidth=1.6, opacity=1).encode(x=x, **channels, **look.exact())
    layers = [
        marks,
        chart.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, aria=False)
        .encode(x="low:Q", x2="high:Q"),
    ]
    if bars:
        thick = known.transform_filter(f"datum.series != '{look.PUBLISHED}'").mark_bar(
            stroke=look.INK, strokeWidth=0.6, aria=False
        )
        layers.insert(0, thick.encode(x=x, fill=channels["fill"], fillOpacity=channels["fillOpacity"]))
    if any(row["base"] is not None for row in rows):
        layers.append(alt.Chart().mark_rule(**look.REFERENCE).encode(x="mean(base):Q"))
    words = chart.mark_text(align="left", dx=5, aria=False)
    layers.append(words.transform_filter("datum.text").encode(x=alt.value("width"), text="text:N"))
    if any("why" in row for row in rows):
        layers.append(words.transform_filter("datum.why").encode(x=alt.value(0), text="why:N"))
    return look.side_by_side(rows, layers, hides="series", height=alt.Step(20))


def _is_baseline(record: Record) -> bool:
    return (record["compressor"], record["scheme"], record["gradients"]) == ("topk", "baseline", "kept")


def _spread(record: Record, column: str) -> str:
    half = record[f"{column}_half_width"]
    return "" if half is None else f" ± {metric_value(half)}"
