"""Parts shared by all figures: colours, shapes, labels, models side by side, and a legend that shows and hides."""

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import SCHEME_WORDS, short_labels
from benchmarks.analysis.table import CELL_COLUMNS, Record
from benchmarks.core.cell import Cell

Row = dict[str, Any]
"""The values of a mark: model, panel (its title), tip (exact values, one per line), and the mark's own."""
Specification = dict[str, Any]
BASELINE = ("topk", "baseline", "kept")
"""Compressor, scheme and gradients that others are compared with."""
MOST, MOST_IN_ALL = 40, 120
"""Most rows of one model in a figure, and of all models; the table has all."""
NEAR = 9
"""Pixels between the outermost marks and the edge."""
INK = "currentColor"
"""Black in files, the text colour on the page, also in dark mode."""
NO_COMPRESSION, PUBLISHED = "no compression", "published"
CROSS = "M-.8-.5-.5-.8 0-.3.5-.8.8-.5.3 0 .8.5.5.8 0 .3-.5.8-.8.5-.3 0z"
STAR = "M0-1 .26-.34 1-.3.42.13.6.8 0 .42-.6.8-.42.13-1-.3-.26-.34z"
HEXAGON = "M-1 0-.5-.87H.5L1 0 .5.87H-.5z"
SERIES = {
    "baseline": ("circle", INK),
    "w+2d": ("triangle-up", "#d55e00"),
    "w": ("triangle-down", "#0083c4"),
    "2d": ("square", "#008f6b"),
    "none": (CROSS, "#b8579a"),
    "a": ("triangle-left", "#0083c4"),
    "d": ("triangle-right", "#008f6b"),
    "member": (STAR, "#9a7400"),
    "partial": ("cross", "#b8579a"),
    "decayed": ("stroke", INK),
    NO_COMPRESSION: (HEXAGON, "#7a858f"),
    PUBLISHED: ("diamond", "#cc4125"),
}
"""Shape and colour of each scheme, and of published values."""
OWN = ("wedge", "#6a51a3")
"""Shape and colour of a scheme added by a user."""
REFERENCE: dict[str, Any] = {"color": INK, "strokeDash": [4, 3], "opacity": 0.75, "aria": False}
CONFIG: dict[str, Any] = {
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {"labelColor": INK, "titleColor": INK, "domainColor": INK, "tickColor": INK, "titleFontWeight": "normal"}
    | {"gridColor": "#8888", "gridWidth": 0.5, "labelLimit": 230, "aria": False, "titleFontSize": 11},
    "axisY": {"grid": False, "ticks": False, "domain": False},
    "header": {"labelColor": INK, "labelAnchor": "start", "labelFontWeight": "bold", "labelFontSize": 12}
    | {"labelExpr": "split(datum.label, '\\n')", "labelLimit": 460},
    "legend": {"labelColor": INK, "orient": "top", "title": None, "columns": 6, "labelLimit": 0, "aria": False},
    "text": {"color": INK, "fontSize": 11},
    "rule": {"color": INK},
}


def series_of(record: Record) -> str:
    """Return the legend entry that shows or hides a setting."""
    return NO_COMPRESSION if record["compressor"] == "none" else str(record["scheme"])


def by_model(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each model, in their order."""
    return grouped((record["model"], record) for record in records)


def labels_of(records: Sequence[Record]) -> list[str]:
    """Return a distinct label for each setting: the paper's line where there is one."""
    if "line" in records[0]:
        several = len({one["world_size"] for one in records}) > 1
        labels = [f"{one['line']}, {one['world_size']} ranks" if several else one["line"] for one in records]
    else:
        labels = short_labels([Cell(**{name: record[name] for name in CELL_COLUMNS}) for record in records])
    # Equal labels would share a row: zero-width spaces keep them apart.
    return [label + "\N{ZERO WIDTH SPACE}" * labels[:place].count(label) for place, label in enumerate(labels)]


def shown_of(records: Sequence[Record], known: Callable[[Record], bool]) -> dict[str, tuple[list[Record], str]]:
    """Return, for each model with a known record, the records to draw and the title of its panel."""
    models = {model: its for model, its in by_model(records).items() if any(map(known, its))}
    most = max(8, min(MOST, MOST_IN_ALL // max(1, len(models))))
    mores = {model: f", and {len(its) - most} more: see the table" * (len(its) > most) for model, its in models.items()}
    return {model: (its[:most], model + mores[model]) for model, its in models.items()}


def metric_words(record: Record) -> str:
    """Return the name of a record's metric and which direction is better."""
    better = {True: ", higher is better", False: ", lower is better"}.get(record["higher_is_better"], "")
    return f"{record['metric_name'] or record.get('unit') or 'metric'}{better}"


def exact() -> dict[str, Any]:
    """Return the channels with a mark's exact values: a tooltip, and a description for screen readers."""
    return {"tooltip": alt.Tooltip("tip:N"), "description": alt.Description("tip:N")}


def rows_axis() -> alt.Y:
    """Return the vertical axis of a figure with a row per setting."""
    return alt.Y("label:N", title=None, sort=alt.EncodingSortField("row", op="min"))


def texts() -> alt.Chart:
    """Return the `text` of each row at the right edge."""
    chart = alt.Chart().mark_text(align="left", dx=5, aria=False).transform_filter("datum.text")
    return chart.encode(x=alt.value("width"), text="text:N", y=rows_axis())


def schemes(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the channels that show schemes by shape and colour, and streamed gradients by open marks."""
    drawn = {row["series"] for row in rows}
    names = sorted(drawn, key=lambda name: (list(SERIES).index(name) if name in SERIES else len(SERIES), name))
    words = alt.Legend(labelExpr=f"{dict(SCHEME_WORDS)}[datum.label] || datum.label")
    shapes, colours = (
        alt.Scale(domain=names, range=[SERIES.get(name, OWN)[which] for name in names]) for which in (0, 1)
    )
    return {
        "shape": alt.Shape("series:N").scale(shapes).legend(words),
        "stroke": alt.Stroke("series:N").scale(colours).legend(words),
        "fill": alt.Fill("series:N").scale(colours).legend(words),
        "fillOpacity": alt.condition("datum.gradients == 'kept'", alt.value(1), alt.value(0)),
    }


def side_by_side(
    rows: Sequence[Row],
    layers: Sequence[alt.Chart],
    *,
    hides: str,
    columns: int = 2,
    width: int = 290,
    height: int | alt.Step = 150,
) -> Specification:
    """Return the figure, with a panel for each title in the rows, and choices of model and, if rows have one, view.

    hides: column of the rows to filter by; a click on the legend shows only that entry, shift adds more.
    """
    shown = alt.selection_point(name="shown", fields=[hides], bind="legend")
    first, *others = layers
    facet = alt.Facet("panel:N", title=None).sort(list(dict.fromkeys(row["panel"] for row in rows)))
    chart = (
        alt.layer(first.add_params(shown), *others)
        .properties(width=width, height=height)
        .facet(facet=facet, columns=columns, data=alt.InlineData(values=list(rows)))
        .resolve_scale(x="independent", y="independent")
        .transform_filter(shown)
        .configure(**CONFIG)
    )
    for name, words in (("view", "Show "), ("model", "Model ")):
        choices = list(dict.fromkeys(row[name] for row in rows if name in row))
        if len(choices) > 1:
            chart = _chosen(chart, name, words, choices)
    return chart.to_dict()


def _chosen(chart: alt.FacetChart, name: str, words: str, choices: list[str]) -> alt.FacetChart:
    """Return the chart with a choice: one view at a time, starting with the first; or models, starting with all."""
    if name == "view":
        bind: Any = alt.binding_radio(options=choices, name=words)
        return chart.add_params(alt.param("view", value=choices[0], bind=bind)).transform_filter("datum.view == view")
    bind = alt.binding_select(options=[None, *choices], labels=["all", *choices], name=words)
    return chart.add_params(alt.param("model", bind=bind)).transform_filter("!model || datum.model == model")
