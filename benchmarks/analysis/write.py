"""Tables as CSV (raw values), as Markdown, as LaTeX (booktabs and longtable), and as text for a screen."""

import csv
import io
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from benchmarks.analysis.load_run import Hole
from benchmarks.analysis.table import Table


def to_csv(table: Table) -> str:
    """Return the records with full precision; empty where there is no value."""
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(table.records[0]) if table.records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in record.items()} for record in table.records)
    return file.getvalue()


def to_markdown(table: Table, holes: Sequence[Hole]) -> str:
    """Return title, reading, table, notes and what is missing."""
    widths = _widths(table)
    lines = [_line(table.head, widths, table.text_columns), _rule(widths, table.text_columns)]
    lines += [_line(row, widths, table.text_columns) for row in table.body]
    text = [f"## {table.title}", table.reading, "\n".join(lines), *table.all_notes]
    if holes:
        text.append("Missing:\n\n" + "\n".join(f"- {hole.name}: {hole.status}, {hole.reason}" for hole in holes))
    return "\n\n".join(text) + "\n"


def to_screen(table: Table) -> str:
    """Return the table in columns, models apart, for a terminal."""
    widths = _widths(table)
    lines = [table.title.upper(), *_wrap(table.reading), "", _columns(table.head, widths, table.text_columns)]
    lines.append("─" * len(lines[-1]))
    for index, row in enumerate(table.body):
        if index and index in table.group_starts:
            lines.append("")
        lines.append(_columns(row, widths, table.text_columns))
    return "\n".join([*lines, *(line for note in table.all_notes for line in _wrap(note))])


def to_list(holes: Sequence[Hole]) -> str:
    """Return what is missing, why, and the command that fills each hole."""
    lines = [f"MISSING: {len(holes)} cell{'s' if len(holes) > 1 else ''}"]
    for hole in holes:
        lines += [f"  {hole.name}: {hole.status}, {hole.reason}", f"    {hole.command}"]
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Lists and mappings as JSON, empty ones as nothing."""
    if isinstance(value, list | dict):
        return json.dumps(value) if value else ""
    return value


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 110)


def _widths(table: Table) -> list[int]:
    return [max(len(row[column]) for row in [table.head, *table.body]) for column in range(len(table.head))]


def _align(cells: Sequence[str], widths: Sequence[int], text_columns: int) -> list[str]:
    pairs = enumerate(zip(cells, widths, strict=True))
    return [cell.ljust(width) if column < text_columns else cell.rjust(width) for column, (cell, width) in pairs]


def _columns(cells: Sequence[str], widths: Sequence[int], text_columns: int) -> str:
    return "  ".join(_align(cells, widths, text_columns)).rstrip()


def _line(cells: Sequence[str], widths: Sequence[int], text_columns: int) -> str:
    return f"| {' | '.join(_align([cell.replace('|', '/') for cell in cells], widths, text_columns))} |"


def _rule(widths: Sequence[int], text_columns: int) -> str:
    return (
        "|" + "|".join("-" * (w + 2) if c < text_columns else "-" * (w + 1) + ":" for c, w in enumerate(widths)) + "|"
    )


SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": r"$-$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{EN DASH}": "--",
    "→": r"$\rightarrow$",
    "←": r"$\leftarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "\N{BLACK DIAMOND}": r"$\diamond$",
    "\n": " ",
}
"""What LaTeX would read otherwise, or an older one does not know."""
ESCAPES = str.maketrans(SPECIAL)


def escape(text: str) -> str:
    """Return text as LaTeX that shows it."""
    return text.translate(ESCAPES)


def to_latex(table: Table) -> str:
    """Return a table with its title, how to read it, and its notes, to be \\input in a document."""
    columns = "".join("l" if column < table.text_columns else "r" for column in range(len(table.head)))
    head = f"{_latex_line(table.head)}\n\\midrule"
    title = escape(table.title)
    lines = [
        "% Needs \\usepackage{booktabs,longtable}.",
        f"\\begin{{longtable}}{{{columns}}}",
        f"\\caption{{{title}. {escape(table.reading)}}}\\label{{tab:{table.name}}}\\\\",
        f"\\toprule\n{head}\n\\endfirsthead",
        f"\\toprule\n{head}\n\\endhead",
        "\\bottomrule\n\\endfoot",
    ]
    starts = set(table.group_starts)
    for index, row in enumerate(table.body):
        lines += ["\\addlinespace"] if index and index in starts else []
        lines.append(_latex_line(row))
    lines.append("\\end{longtable}")
    lines += [f"\\noindent {{\\footnotesize {escape(note)}\\par}}" for note in table.all_notes]
    return "\n".join(lines) + "\n"


def _latex_line(cells: list[str]) -> str:
    return f"{' & '.join(map(escape, cells))} \\\\"
