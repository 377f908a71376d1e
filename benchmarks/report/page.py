"""One page that needs nothing but itself: tables, figures, provenance, what is missing."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.report.load import Run
from benchmarks.report.provenance import is_mixed, provenance_rows
from benchmarks.report.table import Table

PIXELS = 1.55
"""Of a figure, for one of the page."""
HERE = Path(__file__).parent


def render_page(run: Run, tables: Sequence[Table], figures: Mapping[str, bytes]) -> str:
    """Return the page as HTML, without empty tables; figures are PNGs by name of their table."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    results = list(run.results.values())
    return (
        environment.get_template("page.html.j2").render(
            run=run,
            tables=[table for table in tables if table.body],
            images={name: base64.b64encode(data).decode() for name, data in figures.items()},
            widths={name: round(int.from_bytes(data[16:20], "big") / PIXELS) for name, data in figures.items()},
            holes=list(run.holes.values()),
            provenance=provenance_rows(results),
            mixed=is_mixed(results),
            style=(HERE / "page.css").read_text(encoding="utf-8"),
        )
        + "\n"
    )
