"""Tables as CSV (raw values), as Markdown, as LaTeX (booktabs and longtable), and as text for a screen."""

import csv
import io
import json
import textwrap
from collections.abc import Sequence

from benchmarks.analysis.load_run import Hole
from benchmarks.analysis.table import Table


def to_csv(table: Table) -> str:
    """Return the records with full precision; missing values are empty, lists and mappings are JSON."""
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(table.records[0]) if table.records else [], lineterminator="\n")
    writer.writeheader()
    for record in table.records:
        nested = {name: value for name, value in record.items() if isinstance(value, list | dict)}
        plain = {name: json.dumps(value) if value else "" for name, value in nested.items()}
        writer.writerow(record | plain)
    return file.getvalue()


def to_markdown(table: Table, holes: Sequence[Hole]) -> str:
    """Return title, reading, table, notes and the list of what is missing."""
    rows = _aligned(table)
    ends = ["-" if column < table.text_columns else ":" for column in range(len(table.head))]
    rule = [f"{'-' * (len(cell) + 1)}{end}" for cell, end in zip(rows[0], ends, strict=True)]
    head, *body = (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    text = [f"## {table.title}", table.reading, "\n".join([head, f"|{'|'.join(rule)}|", *body]), *table.all_notes]
    if holes:
        text.append("Missing:\n\n" + "\n".join(f"- {hole.name}: {hole.status}, {hole.reason}" for hole in holes))
    return "\n\n".join(text) + "\n"


def to_screen(table: Table) -> str:
    """Return the table in columns for a terminal, with models set apart."""
    head, *body = ("  ".join(row).rstrip() for row in _aligned(table))
    lines = [table.title.upper(), *_wrap(table.reading), "", head, "─" * len(head)]
    for index, row in enumerate(body):
        lines += ["", row] if index and index in table.group_starts else [row]
    return "\n".join([*lines, *(line for note in table.all_notes for line in _wrap(note))])


def to_list(holes: Sequence[Hole]) -> str:
    """Return what is missing, why, and the command that fills each hole."""
    lines = [f"MISSING: {len(holes)} cell{'s' if len(holes) > 1 else ''}"]
    for hole in holes:
        lines += [f"  {hole.name}: {hole.status}, {hole.reason}", f"    {hole.command}"]
    return "\n".join(lines)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 110)


def _aligned(table: Table) -> list[list[str]]:
    """Return head and rows, with each column padded to its widest entry."""
    rows = [table.head, *table.body]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if column < table.text_columns else str.rjust for column in range(len(widths))]
    return [[side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)] for row in rows]


SPECIAL = {one: f"\\{one}" for one in "{}$&%#_"} | {
    "\\": r"\textbackslash{}",
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"|": r"\textbar{}", '"': "''", "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "\N{MULTIPLICATION SIGN}": r"$\times$"},
    **{"\N{EN DASH}": "--", "→": r"$\rightarrow$", "←": r"$\leftarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"},
    **{"≥": r"$\geq$", "≤": r"$\leq$", "\N{BLACK DIAMOND}": r"$\diamond$", "\n": " "},
}
"""Characters that LaTeX would interpret, or that an older LaTeX does not know."""
ESCAPES = str.maketrans(SPECIAL)


def to_latex(table: Table) -> str:
    """Return a table with its title, how to read it, and its notes, for \\input in a document."""
    columns = "".join("l" if column < table.text_columns else "r" for column in range(len(table.head)))
    head = f"{_latex_line(table.head)}\n\\midrule"
    lines = [
        "% Needs \\usepackage{booktabs,longtable}.",
        f"\\begin{{longtable}}{{{columns}}}",
        f"\\caption{{{_escaped(table.title)}. {_escaped(table.reading)}}}\\label{{tab:{table.name}}}\\\\",
        f"\\toprule\n{head}\n\\endfirsthead",
        f"\\toprule\n{head}\n\\endhead",
        "\\bottomrule\n\\endfoot",
    ]
    for index, row in enumerate(table.body):
        lines += ["\\addlinespace"] if index and index in table.group_starts else []
        lines.append(_latex_line(row))
    lines.append("\\end{longtable}")
    lines += [f"\\noindent {{\\footnotesize {_escaped(note)}\\par}}" for note in table.all_notes]
    return "\n".join(lines) + "\n"


def _latex_line(cells: list[str]) -> str:
    return f"{' & '.join(map(_escaped, cells))} \\\\"


def _escaped(text: str) -> str:
    return text.translate(ESCAPES)
