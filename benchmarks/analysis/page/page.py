"""Render the page: what the run shows, the ledger, tables and figures, what is missing, provenance, deviations."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from benchmarks.analysis.charts.draw import Drawn, library
from benchmarks.analysis.charts.trade_off import READING as TRADE_OFF_READING
from benchmarks.analysis.claims.claim import STATUSES, LedgerRow
from benchmarks.analysis.claims.claims_command import families, waiting
from benchmarks.analysis.grouping import first_of, grouped
from benchmarks.analysis.load_run import Hole, Run
from benchmarks.analysis.origin import is_mixed, provenance_rows
from benchmarks.analysis.page.html_rows import groups_of, head_of, is_empty, is_of_paper, measured_words
from benchmarks.analysis.page.ledger_part import SIGNS, by_family, by_test, counts, measured_on, number
from benchmarks.analysis.table import Table
from benchmarks.core.paths import ROOT

SCRIPTS = ("tables.js", "charts.js")
HERE = Path(__file__).parent
DEVIATIONS = ROOT / "docs/deviations.md"
OPEN = '<div class="scroll" role="region" aria-label="Deviations table" tabindex="0"><table class="prose">\n'
FILTERS = {"groups": groups_of, "head": head_of, "number": number, "measured_on": measured_on, "rows": measured_words}


def render_page(
    run: Run, tables: Sequence[Table], figures: Mapping[str, Drawn], judged: Sequence[LedgerRow] = ()
) -> str:
    """Return the page as HTML, without empty tables. Figures are given by the name of their table."""
    results = list(run.results.values())
    filled = [table for table in tables if table.body and not is_empty(table)]
    charts = {name: figure for name, figure in figures.items() if figure.specification}
    return rendered(
        "page.html.j2",
        run=run,
        **_of_ledger(judged),
        own=[table for table in filled if not is_of_paper(table)],
        paper=[table for table in filled if is_of_paper(table)],
        unmeasured=[table for table in tables if table.body and is_empty(table)],
        gaps=gaps(run, tables, judged),
        charts=charts,
        same=same_figures(charts),
        trade_off=TRADE_OFF_READING,
        holes=list(run.holes.values()),
        why=run.why_missing(),
        provenance=provenance_rows(results),
        mixed=is_mixed(results),
        deviations=deviations(),
        **_style_and_scripts(bool(charts)),
    )


def _of_ledger(judged: Sequence[LedgerRow]) -> dict[str, Any]:
    """Return the template's values that are about the ledger."""
    return {
        "ledgers": by_test(judged),
        "families": by_family(judged),
        "signs": SIGNS,
        "statuses": STATUSES,
        "counts": counts(judged),
    }


def _style_and_scripts(has_charts: bool) -> dict[str, Any]:
    """Return the template's values that browsers execute."""
    scripts = ["\n" + "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)]
    scripts = [library(), *scripts] if has_charts else scripts
    return {
        "style": Markup((HERE / "page.css").read_text(encoding="utf-8")),
        "scripts": [Markup(script) for script in scripts],
        # Only these scripts may run and nothing may be fetched, even if a record holds what looks like a script.
        "hashes": [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
    }


def rendered(name: str, **values: Any) -> str:
    """Return a template of this folder with its values filled in; values shown in HTML are escaped."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    return environment.get_template(name).render(**values) + "\n"


def same_figures(charts: Mapping[str, Drawn]) -> dict[str, str]:
    """Return, for each repeated figure, the earlier one that it equals, as for small models on two clusters."""
    pairs = combinations(charts, 2)
    return first_of((name, one) for one, name in pairs if charts[one].specification == charts[name].specification)


def gaps(run: Run, tables: Sequence[Table], judged: Sequence[LedgerRow]) -> list[Hole]:
    """Return the run's missing cells, then what tables and claims need beyond the run's cells, once for each command.

    The latter entries have neither a status nor a reason.
    """
    cells = list(run.holes.values())
    known = {hole.command for hole in cells}
    texts = [(command, f"{table.title.partition(':')[0]}: {what}") for table in tables for what, command in table.lacks]
    for command, names in waiting(judged).items():
        texts.append((command, f"{len(names)} claim{'s' if len(names) > 1 else ''}: {families(names)}"))
    others = grouped((command, what) for command, what in texts if command not in known)
    return cells + [Hole("; ".join(those), "", "", command) for command, those in others.items()]


def deviations(source: Path = DEVIATIONS) -> Markup:
    """Return docs/deviations.md as HTML without its title; empty if it is missing, as in an installed package."""
    try:
        text = source.read_text(encoding="utf-8")
    except OSError:
        return Markup()
    # No raw HTML. Links point into the checkout, which a page sent to others lacks, so only their text is kept.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    texts = {"link_open": "", "link_close": "", "table_open": OPEN, "table_close": "</table></div>\n"}
    for rule, words in texts.items():
        markdown.add_render_rule(rule, lambda *_, words=words: words)
    return Markup(markdown.renderer.render(_below_h2(markdown.parse(text)), markdown.options, {}))


def _below_h2(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with headings one level lower, without the title, which the page's section already has."""
    title = next((i for i, token in enumerate(tokens) if token.tag == "h1"), len(tokens))
    kept = [*tokens[:title], *tokens[title + 3 :]]  # the opening token, its text, the closing token
    for token in kept:
        if token.type.startswith("heading"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    return kept
