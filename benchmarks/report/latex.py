"""Tables as LaTeX: booktabs and longtable, so that long ones break across pages."""

from benchmarks.report.table import Table

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
    head = f"{_line(table.head)}\n\\midrule"
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
        lines.append(_line(row))
    lines.append("\\end{longtable}")
    lines += [f"\\noindent {{\\footnotesize {escape(note)}\\par}}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"{' & '.join(map(escape, cells))} \\\\"
