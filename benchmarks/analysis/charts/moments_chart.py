"""The memory of a step over time: a panel for each setting, with stacked bands for each kind of tensor."""

from collections.abc import Iterator, Sequence

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.table import Record
from benchmarks.core.moments import BANDS, thinned

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
