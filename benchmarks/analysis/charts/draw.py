"""Draw a table's figure, its specification for the page and its files; and pictures of single commands.

Equal tables give equal bytes. Only the bytes of PDFs differ from time to time."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import vl_convert
from altair.utils.schemapi import debug_mode

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
