"""Figures of settings: model states, the memory of a step, metrics and speeds, and memory against accuracy."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.labels import ABSENT, TIMES, mebibytes, metric_value, percent, signed
from benchmarks.analysis.paper.make import ALL as QUANTITIES
from benchmarks.analysis.paper.make import METRIC
from benchmarks.analysis.table import CELL_COLUMNS, Record
from benchmarks.core.rank_memory import BANDS, thinned
from benchmarks.core.record import STATE_FIELDS

# --- Figures of the four states as parts of a bar ---

PARTS = {
    "P parameters": (STATE_FIELDS[0], "#607d8b"),
    "G gradients": (STATE_FIELDS[1], "#e69f00"),
    "R residuals": (STATE_FIELDS[2], "#cc4125"),
    "O optimizer states": (STATE_FIELDS[3], "#a8d0e6"),
    "F in flight": ("in_flight_bytes", "#8883"),
}
PEAK = "fullest moment of a step"
BOUNDARY, FULLEST = "step boundary", "fullest moment"
LETTERS_FROM = 0.05
"""Parts shorter than this share of the longest bar have no letter."""


def memory_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of the memory table's records, in per cent of the baseline; None if there is no baseline."""
    rows = list(_memory_rows(records))
    if not rows:
        return None
    base = alt.Chart().mark_rule(**look.REFERENCE).encode(x=alt.XDatum(100))
    peak = alt.Chart().mark_point(shape="diamond", filled=True, size=60, color=look.INK, opacity=1)
    peak = peak.transform_filter(f"datum.part == '{PEAK}'").encode(x="at:Q", y=look.rows_axis(), **look.exact())
    layers = [*_bars("% of baseline, kept"), base, peak, look.texts()]
    return look.side_by_side(rows, layers, hides="part", width=230, height=alt.Step(20))


def _memory_rows(records: Sequence[Record]) -> Iterator[look.Row]:
    for model, (its, panel) in look.shown_of(records, lambda one: one["normalised"] is not None).items():
        longest = max(one["peak_normalised"] or 0 for one in its)
        for number, (record, label) in enumerate(zip(its, look.labels_of(its), strict=True)):
            common = {"model": model, "panel": panel, "row": number, "label": label}
            if record["normalised"] is None:
                text = "no baseline" if record["seeds"] else "missing"
                yield from (common | {"view": view, "text": text} for view in (BOUNDARY, FULLEST))
                continue
            common["tip"] = _tip(record, label)
            peak = percent(record["peak_normalised"])
            for view in (BOUNDARY, FULLEST):
                for place, (part, (column, _)) in enumerate(PARTS.items()):
                    share = record[column] / record["baseline_total_bytes"]
                    row = {"view": view, "part": part, "place": place, "share": round(100 * share, 4)}
                    row["letter"] = part[0] if share >= LETTERS_FROM * longest else ""
                    if view == FULLEST or place < len(STATE_FIELDS):
                        yield common | row
            both = f"{percent(record['normalised'])}, peak {peak}"
            at = round(100 * record["peak_normalised"], 4)
            yield common | {"view": BOUNDARY, "part": PEAK, "at": at, "text": both}
            yield common | {"view": FULLEST, "part": PEAK, "at": at, "text": peak}


def _tip(record: Record, label: str) -> str:
    whole = record["baseline_total_bytes"]
    states = [
        f"{part}: {mebibytes(record[column])} MiB ({percent(record[column] / whole)})"
        for part, (column, _) in PARTS.items()
    ]
    total = f"Total: {mebibytes(record['total_bytes'])} MiB, normalised {percent(record['normalised'])}"
    fullest = f"Fullest moment: {percent(record['peak_normalised'])}"
    return "\n".join([f"{record['model']}, {label}", *states, total, fullest])


def _bars(title: str) -> list[alt.Chart]:
    """Return the bars of parts, which close up if one is hidden, each with its letter for the colour-blind."""
    parts = PARTS | {PEAK: ("", look.INK)}
    base = alt.Chart().transform_filter("datum.part && datum.share != null")
    base = base.transform_stack(["left", "right"], "share", ["panel", "label"], sort=[alt.SortField("place")])
    base = base.transform_calculate(middle="(datum.left + datum.right) / 2").encode(y=look.rows_axis())
    colour = alt.Color("part:N").scale(domain=list(parts), range=[colour for _, colour in parts.values()])
    bars = base.mark_bar(stroke="white", strokeWidth=0.6)
    return [
        bars.encode(x=alt.X("left:Q", title=title), x2="right:Q", color=colour, **look.exact()),
        base.mark_text(color="black", fontSize=10, aria=False).encode(x="middle:Q", text="letter:N"),
    ]


# --- The memory of a step over time: a panel for each setting, with stacked bands for each kind of tensor ---

COLOURS = ("#607d8b", "#a8d0e6", "#cc4125", "#e69f00", "#9a7400")
"""Colours of BANDS, in order; states have the same ones as in the figure of memory."""
LETTERS = ("P", "O", "R", "G", "M")
POINTS = 48
"""Most moments in a panel: the fullest of each stretch of the record's."""
PANELS = 24
"""Most settings in a figure."""
MIB = 2**20


def moments_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return the figure of the table's records, each with `points`: bytes per band; None if there are none."""
    rows = list(_moments_rows(records))
    if not rows:
        return None
    names = [f"{letter} {words}" for letter, words in zip(LETTERS, BANDS.values(), strict=True)]
    colour = alt.Color("part:N").scale(domain=names, range=list(COLOURS)).legend(columns=3)
    x = alt.X("at:Q", title="% of the step's operations").scale(domain=[0, 100], nice=False)
    bands = (
        alt.Chart()
        .mark_area(interpolate="step-after", stroke="white", strokeWidth=0.4)
        .encode(x=x, y=alt.Y("mib:Q", title="MiB").stack("zero"), color=colour, order="place:Q", **look.exact())
    )
    # Invisible: gives all panels of a model the scale of its fullest, so that heights can be compared.
    scale = alt.Chart().mark_rule(opacity=0).encode(y="max(most):Q")
    return look.side_by_side(rows, [bands, scale], hides="part", width=300, height=130)


def _moments_rows(records: Sequence[Record]) -> Iterator[look.Row]:
    left = PANELS
    for model, (its, title) in look.shown_of(records, lambda one: bool(one["points"])).items():
        most = round(max(record["peak_states_bytes"] for record in its) / MIB, 3)
        for record, label in list(zip(its, look.labels_of(its), strict=True))[:left]:
            left -= 1
            fullest = f"{label}: {record['peak_states_bytes'] / MIB:,.2f} MiB"
            for row in _bands(record):
                yield {"model": model, "panel": f"{title}\n{fullest}", "most": most, **row}


def _bands(record: Record) -> Iterator[look.Row]:
    points = thinned(record["points"], POINTS)
    for place, (letter, words) in enumerate(zip(LETTERS, BANDS.values(), strict=True)):
        part, most = f"{letter} {words}", max(point[place] for point in points)
        tip = f"{part}\n{most:,} bytes at most"
        for number, point in enumerate(points):
            at = round(100 * number / max(1, len(points) - 1), 1)
            yield {"part": part, "place": place, "at": at, "mib": round(point[place] / MIB, 3), "tip": tip}


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
                yield common | {"view": view, "share": 100 * record[column], "tip": tip}


def _key(record: Record) -> tuple[Any, ...]:
    """Return the fields that identify a setting in all tables."""
    return tuple(str(record[name]) for name in CELL_COLUMNS)
