"""Make a run's tables, figures and page from its records; or show the tables on the screen."""

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.analysis.claims import claims_command as claims
from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.evidence import changed_claims, doubts, odd
from benchmarks.analysis.gpu_records import read_devices
from benchmarks.analysis.labels import say
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.table import to_csv, to_latex, to_list, to_markdown, to_screen
from benchmarks.analysis.tables.table_list import ON_SCREEN, TABLES, all_tables
from benchmarks.core.files import save_bytes, save_text
from benchmarks.core.progress import to_stderr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, type=Path, help="the run's folder, e.g. results/runs/smoke")
    parser.add_argument("--show", action="store_true", help="print the tables and what is missing; write nothing")


def main(args: argparse.Namespace) -> int:
    """Write the report, or show the tables. Missing results are listed; they are no error here."""
    run = load_run(args.run, to_stderr)
    say(screen_text(run) if args.show else f"Report: {write_report(run)}")
    return 0


def write_report(run: Run) -> Path:
    """Write tables/*.{csv,md,tex}, figures/*.{svg,png,pdf} and report.html into the run's folder; return that."""
    from benchmarks.analysis.charts import draw
    from benchmarks.analysis.page.page import render_page

    run = _noted(run)
    tables = [make(run) for make in all_tables().values()]
    for table in tables:
        save_text(to_csv(table), run.folder / f"tables/{table.name}.csv")
        save_text(to_markdown(table, list(run.holes.values())), run.folder / f"tables/{table.name}.md")
        save_text(to_latex(table), run.folder / f"tables/{table.name}.tex")
    figures = draw.draw_all(tables)
    for figure in figures.values():
        for form, data in figure.files.items():
            save_bytes(data, run.folder / f"figures/{figure.name}.{form}")
    judged = claims.ledger(run, devices=read_devices())
    write_claims(run, judged)
    save_text(render_page(run, tables, figures, judged), run.folder / "report.html")
    return run.folder / "report.html"


def write_claims(run: Run, found: list[LedgerRow]) -> None:
    """Write the ledger into the run's folder: claims.json, tables/claims.csv, tables/claims.md."""
    save_text(claims.to_json(found), run.folder / "claims.json")
    save_text(claims.to_csv(found), run.folder / "tables/claims.csv")
    save_text(claims.to_markdown(found), run.folder / "tables/claims.md")


def screen_text(run: Run) -> str:
    """Return the tables that fit a screen, what is missing, the ledger, and where the page is."""
    run = _noted(run)
    parts = [to_screen(TABLES[name](run)) for name in ON_SCREEN]
    parts += [f"Note: {note}" for note in run.notes]
    parts += [to_list(list(run.holes.values()))] if run.holes else []
    parts += [f"CLAIMS\n{claims.to_screen(claims.ledger(run, devices=read_devices()))}"]
    parts += [f"All of it: {run.folder / 'tables/claims.md'}\nReport: {run.folder / 'report.html'}"]
    return "\n\n".join(parts)


def _noted(run: Run) -> Run:
    return replace(run, notes=[*run.notes, *doubts(run), *odd(run), *changed_claims()])
