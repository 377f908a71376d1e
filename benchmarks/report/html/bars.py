"""The figure of memory: the four states as parts of a bar, at a step boundary and at the fullest moment of a step."""

from collections.abc import Sequence

from markupsafe import Markup

from benchmarks.record import STATE_FIELDS
from benchmarks.report.html.chart import MOST, Chart, Mark, Panel, Scale, by_model, labels_of, series_of
from benchmarks.report.labels import mebibytes, percent
from benchmarks.report.table import Record

PARTS = dict(zip("PGRO", STATE_FIELDS, strict=True)) | {"F": "in_flight_bytes"}
WORDS = {"P": "parameters", "G": "gradients", "R": "residuals", "O": "optimizer states", "F": "in flight"}
BOUNDARY, FULLEST = "step boundary", "fullest moment"
READING = (
    "Per cent of what top-k with a full residual and kept gradients holds (baseline, kept), the dashed line. "
    "\N{BLACK DIAMOND} is the fullest moment of a step. Shorter is better."
)
PART = Markup(
    '<svg class="part {0}" data-part="{0}" x="{1}%" width="{2}%">'
    '<rect y="3" width="100%" height="16"/><line x2="100%" y1="11" y2="11"/></svg>'
)
"""The line is dashed: a texture for those who see no colours. Patterns of SVG made a print 50 times as large."""
LINE = Markup('<line class="reference" x1="{0}%" x2="{0}%" y2="22"/>')
DIAMOND = Markup('<use href="#shape-peak" class="peak" data-part="peak" x="{}%" y="11"/>')


def memory_chart(records: Sequence[Record]) -> Chart | None:
    """Return the figure of the memory table's records; None if none has a baseline."""
    panels = []
    for model, all_records in by_model([record for record in records if record["normalised"] is not None]).items():
        shown = all_records[:MOST]
        most = max([1.0, *(record["peak_normalised"] for record in shown)])
        scale = Scale(0, 102 * most)
        for view in (BOUNDARY, FULLEST):
            marks = [_mark(record, label, view, scale) for record, label in zip(shown, labels_of(shown), strict=True)]
            panels.append(Panel(model, view, marks, scale.ticks(), "% of baseline, kept", more=len(all_records[MOST:])))
    legend = [*((part, f"{part} {words}") for part, words in WORDS.items()), ("peak", "fullest moment of a step")]
    return Chart("memory", "Memory of the model states", READING, panels, legend) if panels else None


def _mark(record: Record, label: str, view: str, scale: Scale) -> Mark:
    whole, left, drawn = record["baseline_total_bytes"], 0.0, []
    for part, column in PARTS.items():
        if part == "F" and view == BOUNDARY:
            continue
        width = scale.at(100 * record[column] / whole)
        drawn.append(PART.format(part, round(left, 2), width))
        left += width
    drawn.append(LINE.format(scale.at(100)))
    value = percent(record["normalised"])
    if view == BOUNDARY:
        drawn.append(DIAMOND.format(scale.at(100 * record["peak_normalised"])))
        value += f" \N{BLACK DIAMOND} {percent(record['peak_normalised'])}"
    else:
        value = percent(record["peak_normalised"])
    return Mark(series_of(record), label, _tip(record, label), Markup().join(drawn), value)


def _tip(record: Record, label: str) -> str:
    whole = record["baseline_total_bytes"]
    states = [
        f"{part} {WORDS[part]}: {mebibytes(record[column])} MiB ({percent(record[column] / whole)})"
        for part, column in PARTS.items()
    ]
    total = f"Total: {mebibytes(record['total_bytes'])} MiB, normalised {percent(record['normalised'])}"
    return "\n".join(
        [f"{record['model']}, {label}", *states, total, f"Fullest moment: {percent(record['peak_normalised'])}"]
    )
