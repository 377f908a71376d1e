"""Figures of model states: parts of a bar, tensor by tensor, and a step over time."""

from collections.abc import Iterator, Sequence

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.labels import mebibytes, percent
from benchmarks.analysis.table import Record
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
    rows = list(_rows(records))
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


def _rows(records: Sequence[Record]) -> Iterator[look.Row]:
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
