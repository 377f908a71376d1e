"""Make a run's tables, figures and page from its records; or show the tables on the screen."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.claims.finding import Finding
from benchmarks.claims.ledger import ledger
from benchmarks.claims.show import to_csv as claims_csv
from benchmarks.claims.show import to_json
from benchmarks.claims.show import to_markdown as claims_markdown
from benchmarks.claims.show import to_screen as claims_screen
from benchmarks.files import save_bytes, save_text
from benchmarks.report.latex import to_latex
from benchmarks.report.load import Run, load_run
from benchmarks.report.reading import EVERY_SECONDS
from benchmarks.report.table import Table
from benchmarks.report.tables import ON_SCREEN, TABLES, all_tables
from benchmarks.report.write import to_csv, to_list, to_markdown, to_screen

MANY_CELLS = 1000
"""More than these have figures that two processes draw faster."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, type=Path, help="the run's folder, e.g. results/runs/smoke")
    parser.add_argument("--show", action="store_true", help="print the tables and what is missing; write nothing")


def main(args: argparse.Namespace) -> int:
    """Write the report, or show the tables; what is missing is said, and is no error here."""
    run = load_run(args.run, say)
    print(screen_text(run) if args.show else f"Report: {write_report(run)}")
    return 0


def say(line: str) -> None:
    """Tell how far it is, on the error stream: the output is the report's."""
    print(line, file=sys.stderr, flush=True)


def write_report(run: Run) -> Path:
    """Write tables/*.{csv,md,tex}, figures/*.{png,svg} and report.html into the run's folder; return that."""
    from benchmarks.report.html.page import render_page

    tables = [make(run) for make in all_tables().values()]
    figures = {}
    for table, (raster, vector) in zip(tables, _pictures(tables, len(run.cells) > MANY_CELLS), strict=True):
        figures[table.name] = raster
        save_text(to_csv(table), run.folder / f"tables/{table.name}.csv")
        save_text(to_markdown(table, list(run.holes.values())), run.folder / f"tables/{table.name}.md")
        save_text(to_latex(table), run.folder / f"tables/{table.name}.tex")
        save_bytes(raster, run.folder / f"figures/{table.name}.png")
        save_bytes(vector, run.folder / f"figures/{table.name}.svg")
    findings = ledger(run)
    write_claims(run, findings)
    save_text(render_page(run, tables, figures, findings), run.folder / "report.html")
    return run.folder / "report.html"


def write_claims(run: Run, found: list[Finding]) -> None:
    """Write the ledger into the run's folder: claims.json, tables/claims.csv, tables/claims.md."""
    save_text(to_json(found), run.folder / "claims.json")
    save_text(claims_csv(found), run.folder / "tables/claims.csv")
    save_text(claims_markdown(found), run.folder / "tables/claims.md")


def _pictures(tables: Sequence[Table], many: bool) -> Iterator[tuple[bytes, bytes]]:
    """Draw the tables' figures, PNG and SVG, in order; those of many rows in two processes."""
    from benchmarks.report.figures import draw_both

    if not many:
        yield from map(draw_both, tables)
        return
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        next_word = time.monotonic() + EVERY_SECONDS
        for number, pictures in enumerate(pool.map(draw_both, tables), start=1):
            if time.monotonic() >= next_word:
                say(f"drew {number} of {len(tables)} figures")
                next_word = time.monotonic() + EVERY_SECONDS
            yield pictures


def screen_text(run: Run) -> str:
    """Return the tables that fit a screen, what is missing, the ledger, and where the page is."""
    parts = [to_screen(TABLES[name](run)) for name in ON_SCREEN]
    parts += [f"Note: {note}" for note in run.notes]
    parts += [to_list(list(run.holes.values()))] if run.holes else []
    parts += [f"CLAIMS\n{claims_screen(ledger(run))}"]
    parts += [f"All of it: {run.folder / 'tables/claims.md'}\nReport: {run.folder / 'report.html'}"]
    return "\n\n".join(parts)
