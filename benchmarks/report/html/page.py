"""Render the page: the ledger, tables, figures, what is missing, provenance, deviations."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchmarks.claims.finding import Finding
from benchmarks.report.html.bars import memory_chart
from benchmarks.report.html.chart import Chart, css_name
from benchmarks.report.html.deviations import deviations
from benchmarks.report.html.dots import accuracy_chart, throughput_chart
from benchmarks.report.html.ledger import by_test, counts, entries, scopes
from benchmarks.report.html.rows import groups_of, head_of, is_empty
from benchmarks.report.html.scatter import trade_off_chart
from benchmarks.report.load import Hole, Run
from benchmarks.report.provenance import is_mixed, provenance_rows
from benchmarks.report.table import Table

PIXELS = 1.55
"""Of a picture, for one of the page."""
LARGEST = 2**20
"""Bytes of a picture on the page; larger ones are files beside it only."""
DRAWN = ("memory", "accuracy", "seeds", "throughput")
"""Tables whose figure the page draws itself, from their records."""
SCRIPTS = ("tables.js", "charts.js")
HERE = Path(__file__).parent


def render_page(
    run: Run, tables: Sequence[Table], figures: Mapping[str, bytes], findings: Sequence[Finding] = ()
) -> str:
    """Return the page as HTML, without empty tables; figures are PNGs by name of their table."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"css_name": css_name, "groups": groups_of, "head": head_of}
    results = list(run.results.values())
    script = "\n" + "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    drawn = [*DRAWN, *(table.name for table in tables if is_empty(table))]
    pictures = {name: data for name, data in figures.items() if name not in drawn and len(data) <= LARGEST}
    return (
        environment.get_template("page.html.j2").render(
            run=run,
            ledgers=[(words, entries(some)) for words, some in by_test(findings)],
            on=scopes(findings),
            counts=counts(findings),
            tables=[table for table in tables if table.body],
            charts=charts({table.name: table for table in tables}),
            images={name: base64.b64encode(data).decode() for name, data in pictures.items()},
            widths={name: round(int.from_bytes(data[16:20], "big") / PIXELS) for name, data in pictures.items()},
            left_out={name for name in figures if name not in pictures and name not in drawn},
            holes=list(run.holes.values()),
            why=why_missing(list(run.holes.values())),
            provenance=provenance_rows(results),
            mixed=is_mixed(results),
            deviations=deviations(),
            style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
            script=Markup(script),
            # Only this script may run, and nothing may be fetched: also if a record holds what looks like a script.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
        + "\n"
    )


def charts(tables: Mapping[str, Table]) -> list[Chart]:
    """Return the figures of the tables that are there and hold something."""
    records = {name: tables[name].records if name in tables else [] for name in ("memory", "seeds", "throughput")}
    found = (
        memory_chart(records["memory"]),
        trade_off_chart(records["memory"], records["seeds"]),
        accuracy_chart(records["seeds"]),
        throughput_chart(records["throughput"]),
    )
    return [chart for chart in found if chart is not None]


def why_missing(holes: Sequence[Hole]) -> list[tuple[str, int]]:
    """Return each status of the cells that are missing, and how many have it, the most frequent first."""
    statuses = [hole.status for hole in holes]
    return sorted(((status, statuses.count(status)) for status in dict.fromkeys(statuses)), key=lambda one: -one[1])
