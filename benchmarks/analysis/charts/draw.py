"""Draw a table's figure, its specification for the page and its files; and pictures of single commands.

Equal tables give equal bytes. Only the bytes of PDFs differ from time to time."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.rows_chart import trade_off_chart
from benchmarks.analysis.table import Table
from benchmarks.analysis.tables.table_list import FIGURE_FORMS, TRADE_OFF
from resireduce.scheme import load

# --- Draw a table's figure: its specification for the page, and its files. Equal tables give equal bytes ---


DOTS_PER_INCH = 150
SCREEN = 800
"""Height in pixels above which a figure is tall."""
NOTHING = {"data": {"values": [{}]}, "mark": {"type": "text", "text": "nothing measured yet", "fontStyle": "italic"}}
"""Drawn if there is nothing to show."""
SNIPPET = "window.vegaEmbed = vegaEmbed;"
"""The part of the library that the page's own script needs."""
GROUND = re.compile(r'<rect width="[\d.]+" height="[\d.]+" fill="white"/>')


@dataclass(frozen=True)
class Drawn:
    """A figure."""

    name: str
    specification: Mapping[str, Any] | None
    """Specification in Vega-Lite; None if there is nothing to draw."""
    compiled: Mapping[str, Any]
    """Specification in Vega, which needs no compiler in the browser."""
    svg: str
    png: bytes
    pdf: bytes

    @property
    def files(self) -> dict[str, bytes]:
        """The bytes of its files, by suffix."""
        return dict(zip(FIGURE_FORMS, (self.svg.encode(), self.png, self.pdf), strict=True))

    @property
    def is_tall(self) -> bool:
        """Whether it is taller than a screen; the page then shows it only on request."""
        return float(re.findall(r'height="([\d.]+)"', self.svg)[0]) > SCREEN

    @property
    def inline(self) -> str:
        """The SVG for use inside a page, with the page's background and colours."""
        return (
            GROUND.sub("", self.svg, count=1)
            .replace('xmlns="http://www.w3.org/2000/svg" ', "")
            .replace('xmlns:xlink="http://www.w3.org/1999/xlink" ', "")
        )

    @property
    def data(self) -> str:
        """The specification for embedding in a page, without anything that could end a script."""
        shown = {key: value for key, value in self.compiled.items() if key not in ("$schema", "background")}
        return json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")


def draw_all(tables: Sequence[Table]) -> dict[str, Drawn]:
    """Return each table's figure, drawn from its records, and the figure of memory against accuracy."""
    found: dict[str, Mapping[str, Any] | None] = {}
    records = {table.name: table.records for table in tables}
    with debug_mode(False):  # a figure is validated as a whole, and not each of its parts before
        for table in tables:
            shown = table.records if table.drawn is None else table.drawn
            found[table.name] = load(table.figure)(shown) if shown and table.figure else None
        found[TRADE_OFF] = trade_off_chart(records.get("memory", []), records.get("accuracy", []))
    return {name: drawn(name, specification) for name, specification in found.items()}


def drawn(name: str, specification: Mapping[str, Any] | None) -> Drawn:
    """Return a specification with the files made from it."""
    compiled = vl_convert.vegalite_to_vega({"background": "white", **(specification or NOTHING)})
    numbers: dict[str, int] = {}
    svg = re.sub(  # Vega's ids count on and on: these are reproducible, and unique to the figure
        r'((?:id="|url\(#))clip(\d+)',
        lambda found: f"{found[1]}{name}-clip{numbers.setdefault(found[2], len(numbers))}",
        vl_convert.vega_to_svg(compiled),
    )
    png, pdf = vl_convert.svg_to_png(svg, ppi=DOTS_PER_INCH), vl_convert.svg_to_pdf(svg)
    return Drawn(name, specification, compiled, svg, png, pdf)


@cache
def library() -> str:
    """Return the script that draws specifications in a page: Vega and what it needs. This takes seconds."""
    return f"(() => {{\n{vl_convert.javascript_bundle(SNIPPET)}\n}})();"


# --- Pictures of single commands as SVG ---


PARTS = {"computes": "#7a858f", "hidden": "#0083c4", "exposed": "#d55e00"}
"""The kinds of pieces in a lane of a step, and their colours."""


def scaling(points: Sequence[dict[str, Any]], title: str) -> str:
    """Return the share of its speed that a rank keeps as ranks are added, with a line per name.

    points: name, ranks, efficiency (1: as fast as alone) and text of each. title: what was simulated.
    """
    rows = []
    for one in points:
        kept = 100 * one["efficiency"]
        tip = [one["name"], f"{one['ranks']} ranks", f"{kept:.1f} %", one["text"]]
        rows.append({"panel": title, "name": one["name"], "ranks": one["ranks"], "efficiency": kept, "tip": tip})
    x = alt.X("ranks:Q", title="ranks").scale(type="log", base=2)
    y = alt.Y("efficiency:Q", title="% of a rank's speed alone", axis=alt.Axis(grid=True)).scale(domain=[0, 100])
    colour = alt.Color("name:N").sort(None).legend(orient="right", columns=1, title=None)
    base = alt.Chart().encode(x=x, y=y, color=colour, **look.exact())
    layers = base.mark_line(), base.mark_point(filled=True)
    return drawn("scaling", look.side_by_side(rows, layers, hides="name", columns=1, width=460, height=260)).svg


def step(pieces: Sequence[dict[str, Any]], title: str) -> str:
    """Return one simulated step: its streams as lanes, and the part of communication that nothing hides.

    pieces: lane, part (one of PARTS), start_seconds, end_seconds and text of each; lanes are in their order. title:
    what was simulated.
    """
    rows = []
    for piece in pieces:
        start, end = (1000 * piece[name] for name in ("start_seconds", "end_seconds"))
        row = {"panel": title, "lane": piece["lane"], "part": piece["part"], "start": start, "end": end}
        if end > start:
            rows.append(row | {"tip": [piece["lane"], piece["text"], f"{start:.3f} to {end:.3f} ms"]})
    lanes = list(dict.fromkeys(piece["lane"] for piece in pieces))
    scale = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    bars = (
        alt.Chart()
        .mark_bar(height=14, stroke="white", strokeWidth=0.3)
        .encode(
            x=alt.X("start:Q", title="ms"),
            x2="end:Q",
            y=alt.Y("lane:N", title=None).sort(lanes),
            color=alt.Color("part:N").scale(scale).legend(title=None),
            **look.exact(),
        )
    )
    return drawn("step", look.side_by_side(rows, [bars], hides="part", columns=1, width=620, height=alt.Step(22))).svg
