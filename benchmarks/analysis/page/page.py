"""Render the page of a run: the ledger, tables and figures, what is missing, provenance."""

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchmarks.analysis.charts.draw import Drawn, library
from benchmarks.analysis.charts.rows_chart import READING as TRADE_OFF_READING
from benchmarks.analysis.claims.claim import STATUSES, LedgerRow
from benchmarks.analysis.claims.claims_command import families, family, waiting
from benchmarks.analysis.grouping import first_of, grouped
from benchmarks.analysis.labels import ABSENT, MINUS
from benchmarks.analysis.load_run import Hole, Run, is_mixed, provenance_rows
from benchmarks.analysis.table import Table

# --- The rows of a table for the page: the text that is shown, and the number that it is sorted by ---

BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
LEADING = re.compile(r"([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]*)")


@dataclass(frozen=True)
class Shown:
    """One entry of a table."""

    text: str
    is_text: bool
    """Whether it belongs to the text columns at the left."""
    value: str = ""
    """The sort key; empty if it is sorted by its text."""


@dataclass(frozen=True)
class Group:
    """Rows that stay together when the table is sorted: those of one model."""

    name: str
    rows: list[list[Shown]]
    empty: bool
    """Whether nothing in it has been measured (tables of the paper only); such rows are folded."""


def head_of(table: Table) -> list[Shown]:
    """Return the headings, without the column that names the groups."""
    shown = [Shown(text, column < table.text_columns) for column, text in enumerate(table.head)]
    return shown[bool(table.group_starts) :]


def groups_of(table: Table) -> list[Group]:
    """Return a table's rows in groups; a table without groups gives one group without a name."""
    found = []
    for start, end in pairwise([*(table.group_starts or [0]), len(table.body)]):
        name = table.body[start][0] if table.group_starts else ""
        rows = [_row(table, index)[bool(table.group_starts) :] for index in range(start, end)]
        found.append(Group(name, rows, not any(_measured(table)[start:end])))
    return found


def _measured(table: Table) -> list[bool]:
    """Say of each row whether it was measured; tables of the paper alone have rows that were not."""
    if len(table.records) != len(table.body):
        return [True] * len(table.body)
    return [record.get("measured", "") is not None for record in table.records]


def measured_words(table: Table) -> str:
    """Return how many rows a table has, and how many of them were measured."""
    rows, measured = len(table.body), sum(_measured(table))
    text = f"{rows} row{'s' if rows > 1 else ''}"
    return f"{text}, {measured} of them measured" if measured < rows else text


def _row(table: Table, index: int) -> list[Shown]:
    """Return the entries of a row, sorted by the record's values if the table names its columns, else as shown."""
    found = []
    for column, text in enumerate(table.body[index]):
        raw: Any = table.records[index].get(table.columns[column]) if table.columns else None
        value = raw if isinstance(raw, int | float) else _leading_number(text)
        is_text = column < table.text_columns
        is_sorted = not is_text and value is not None and math.isfinite(value)
        found.append(Shown(text, is_text, f"{value:.12g}" if is_sorted else ""))
    return found


def _leading_number(text: str) -> float | None:
    """Return the number that a text begins with, sizes in bytes; None if there is none."""
    found = LEADING.match(text.strip().replace(MINUS, "-").removeprefix("±"))
    return float(found[1].replace(",", "")) * BYTES.get(found[2], 1) if found else None


# --- The ledger of claims for the page: numbers as text, counts, and groups of claims ---

SIGNS = {"reproduced": "✓", "not reproduced": "✗", "inconclusive": "?", "not run": ABSENT}
"""Signs before the words, for readers who cannot tell the colours apart."""
WORDS = {"obs": "Observation", "exp": "Experiment", "sec": "Section", "table": "Table", "ours": "Our own"}
"""Names of the claim families, by the letters that their ids begin with."""


def by_test(judged: Sequence[LedgerRow]) -> list[tuple[str, list[LedgerRow]]]:
    """Return the tested claims and those not run, each with a heading; empty groups are left out."""
    tested = [one for one in judged if one.status != "not run"]
    others = [one for one in judged if one.status == "not run"]
    words = (f"Tested: {len(tested)} of {len(judged)} claims", f"Not run: {len(others)} of {len(judged)} claims")
    return [(text, some) for text, some in zip(words, (tested, others), strict=True) if some]


def by_family(judged: Sequence[LedgerRow]) -> list[tuple[str, list[LedgerRow]]]:
    """Return the claims of each experiment, observation or section under its name, ordered by status."""
    found = grouped((family(one.id), one) for one in judged)
    return [(_words(name), sorted(those, key=lambda one: STATUSES.index(one.status))) for name, those in found.items()]


def _words(name: str) -> str:
    """Return a family's name, such as "Experiment 1" for exp1; unknown families keep their own name."""
    letters, digits = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{WORDS[letters]} {digits}".strip() if letters in WORDS else name


def number(value: float | None, unit: str | None = None) -> str:
    """Return a value with four significant digits and its unit."""
    if value is None:
        return ABSENT
    text = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return text.replace("-", MINUS) + (f" {unit}" if unit else "")


def measured_on(one: LedgerRow) -> str:
    """Return the seeds and the hardware that a verdict rests on, as far as known."""
    seeds = f"{one.seeds} seed{'s' if one.seeds > 1 else ''}" if one.seeds else ""
    return ", ".join(text for text in (seeds, one.hardware) if text)


# --- Render the page ---

SCRIPTS = ("tables.js", "charts.js")
HERE = Path(__file__).parent
FILTERS = {"groups": groups_of, "head": head_of, "number": number, "measured_on": measured_on, "rows": measured_words}


def render_page(
    run: Run, tables: Sequence[Table], figures: Mapping[str, Drawn], judged: Sequence[LedgerRow] = ()
) -> str:
    """Return the page as HTML, without empty tables. Figures are given by the name of their table."""
    results = list(run.results.values())
    filled = [table for table in tables if any(_measured(table))]
    charts = {name: figure for name, figure in figures.items() if figure.specification}
    scripts = ["\n" + "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)]
    scripts = [library(), *scripts] if charts else scripts
    return rendered(
        "page.html.j2",
        run=run,
        ledgers=by_test(judged),
        families=by_family(judged),
        signs=SIGNS,
        statuses=STATUSES,
        counts=[(status, SIGNS[status], sum(one.status == status for one in judged)) for status in STATUSES],
        own=[table for table in filled if not _is_of_paper(table)],
        paper=[table for table in filled if _is_of_paper(table)],
        unmeasured=[table for table in tables if table.body and not any(_measured(table))],
        gaps=gaps(run, tables, judged),
        charts=charts,
        same=_same_figures(charts),
        trade_off=TRADE_OFF_READING,
        holes=list(run.holes.values()),
        why=Counter(hole.status for hole in run.holes.values()).most_common(),
        provenance=provenance_rows(results),
        mixed=is_mixed(results),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        # Only these scripts may run and nothing may be fetched, even if a record holds what looks like a script.
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
    )


def _is_of_paper(table: Table) -> bool:
    """Say whether a table shows published values beside the measured ones."""
    return bool(table.records) and "published" in table.records[0]


def rendered(name: str, folder: Path = HERE, filters: Mapping[str, Any] = FILTERS, **values: Any) -> str:
    """Return a template with its values filled in; values shown in HTML are escaped."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name).render(**values) + "\n"


def _same_figures(charts: Mapping[str, Drawn]) -> dict[str, str]:
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
