"""Make a run's tables, figures and page from its records; or show the tables on the screen."""

import argparse
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
from benchmarks.report.tables import ALL_TABLES, ON_SCREEN
from benchmarks.report.write import to_csv, to_list, to_markdown, to_screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, type=Path, help="the run's folder, e.g. results/runs/smoke")
    parser.add_argument("--show", action="store_true", help="print the tables and what is missing; write nothing")


def main(args: argparse.Namespace) -> int:
    """Write the report, or show the tables; what is missing is said, and is no error here."""
    run = load_run(args.run)
    print(screen_text(run) if args.show else f"Report: {write_report(run)}")
    return 0


def write_report(run: Run) -> Path:
    """Write tables/*.{csv,md,tex}, figures/*.{png,svg} and report.html into the run's folder; return that."""
    from benchmarks.report.figures import draw, draw_svg
    from benchmarks.report.html.page import render_page

    tables = [make(run) for make in ALL_TABLES.values()]
    figures = {table.name: draw(table) for table in tables}
    for table in tables:
        save_text(to_csv(table), run.folder / f"tables/{table.name}.csv")
        save_text(to_markdown(table, list(run.holes.values())), run.folder / f"tables/{table.name}.md")
        save_text(to_latex(table), run.folder / f"tables/{table.name}.tex")
        save_bytes(figures[table.name], run.folder / f"figures/{table.name}.png")
        save_bytes(draw_svg(table), run.folder / f"figures/{table.name}.svg")
    findings = ledger(run)
    write_claims(run, findings)
    save_text(render_page(run, tables, figures, findings), run.folder / "report.html")
    return run.folder / "report.html"


def write_claims(run: Run, found: list[Finding]) -> None:
    """Write the ledger into the run's folder: claims.json, tables/claims.csv, tables/claims.md."""
    save_text(to_json(found), run.folder / "claims.json")
    save_text(claims_csv(found), run.folder / "tables/claims.csv")
    save_text(claims_markdown(found), run.folder / "tables/claims.md")


def screen_text(run: Run) -> str:
    """Return the tables that fit a screen, what is missing, where the page is, and the ledger."""
    parts = [to_screen(ALL_TABLES[name](run)) for name in ON_SCREEN]
    parts += [f"Note: {note}" for note in run.notes]
    parts += [to_list(list(run.holes.values()))] if run.holes else []
    parts += [f"CLAIMS\n{claims_screen(ledger(run))}"]
    parts += [f"All of it: {run.folder / 'tables/claims.md'}\nReport: {run.folder / 'report.html'}"]
    return "\n\n".join(parts)
