"""From a table to its figure: the specification, which the page has, and its files. The same bytes for the same table.

Only of PDFs the bytes differ from time to time.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import vl_convert

from benchmarks.analysis.charts.trade_off import trade_off_chart
from benchmarks.analysis.table import Table
from benchmarks.analysis.tables.table_list import FIGURE_FORMS, TRADE_OFF
from resireduce.scheme import load

DOTS_PER_INCH = 150
SCREEN = 800
"""Pixels."""
NOTHING = {"data": {"values": [{}]}, "mark": {"type": "text", "text": "nothing measured yet", "fontStyle": "italic"}}
"""What is drawn where there is nothing to draw."""
SNIPPET = "window.vegaEmbed = vegaEmbed;"
"""What of the library the page's own script needs."""
GROUND = re.compile(r'<rect width="[\d.]+" height="[\d.]+" fill="white"/>')


@dataclass(frozen=True)
class Drawn:
    """A figure."""

    name: str
    specification: Mapping[str, Any] | None
    """In Vega-Lite; None where there is nothing to draw."""
    compiled: Mapping[str, Any]
    """The specification in Vega, which needs no compiler in the browser."""
    svg: str
    png: bytes
    pdf: bytes

    @property
    def files(self) -> dict[str, bytes]:
        """The bytes of its files, by the ending of their names."""
        return dict(zip(FIGURE_FORMS, (self.svg.encode(), self.png, self.pdf), strict=True))

    @property
    def is_tall(self) -> bool:
        """Whether it is more than a screen, which a page does not show unasked."""
        return float(re.findall(r'height="([\d.]+)"', self.svg)[0]) > SCREEN

    @property
    def inline(self) -> str:
        """The SVG as it stands in a page: on the page's ground, in its colours."""
        return (
            GROUND.sub("", self.svg, count=1)
            .replace('xmlns="http://www.w3.org/2000/svg" ', "")
            .replace('xmlns:xlink="http://www.w3.org/1999/xlink" ', "")
        )

    @property
    def data(self) -> str:
        """The figure as a page can hold it: without what could end a script."""
        shown = {key: value for key, value in self.compiled.items() if key not in ("$schema", "background")}
        return json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")


def draw_all(tables: Sequence[Table]) -> dict[str, Drawn]:
    """Return the figure of each table, what its function makes of its records; and of memory against accuracy."""
    found = {}
    for table in tables:
        shown = table.records if table.drawn is None else table.drawn
        found[table.name] = drawn(table.name, load(table.figure)(shown) if shown and table.figure else None)
    records = {table.name: table.records for table in tables}
    both = trade_off_chart(records.get("memory", []), records.get("accuracy", []))
    return found | {TRADE_OFF: drawn(TRADE_OFF, both)}


def drawn(name: str, specification: Mapping[str, Any] | None) -> Drawn:
    """Return a specification with the files that are made of it."""
    compiled = vl_convert.vegalite_to_vega({"background": "white", **(specification or NOTHING)})
    svg = with_own_ids(vl_convert.vega_to_svg(compiled), name)
    png, pdf = vl_convert.svg_to_png(svg, ppi=DOTS_PER_INCH), vl_convert.svg_to_pdf(svg)
    return Drawn(name, specification, compiled, svg, png, pdf)


@cache
def library() -> str:
    """Return the script that makes figures of specifications in a page, Vega and what it needs; it takes seconds."""
    return f"(() => {{\n{vl_convert.javascript_bundle(SNIPPET)}\n}})();"


def with_own_ids(svg: str, name: str) -> str:
    """Return an SVG with ids that are the same each time, and no other figure's: Vega counts on and on."""
    numbers: dict[str, int] = {}
    return re.sub(
        r'((?:id="|url\(#))clip(\d+)',
        lambda found: f"{found[1]}{name}-clip{numbers.setdefault(found[2], len(numbers))}",
        svg,
    )
