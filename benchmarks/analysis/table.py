"""The table type, what all tables share, and how they are written: CSV, Markdown, LaTeX, and text for a screen."""

import csv
import io
import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.analysis.labels import ABSENT, short_labels
from benchmarks.analysis.load_run import Hole, Run
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.record import CellResult

CELL_COLUMNS = tuple(name for name in CELL_FIELDS if name != "seed")
SAME_WORK = ("model", "world_size", "backend", "data", "batch_per_rank", "length", "released")
"""Fields in which a setting and its baseline must agree in any comparison."""
BASELINE = {
    "compressor": "topk",
    "scheme": "baseline",
    "gradients": "kept",
    "residual_dtype": None,
    "hierarchy": "flat",
    "merge": "none",
}

Record = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Records hold raw values, with units in the column names; head and body are the view for people."""

    name: str
    title: str
    reading: str
    """How to read the table, and which direction is better."""
    records: list[Record]
    head: list[str]
    body: list[list[str]]
    figure: str = ""
    """Function from records to the figure's specification, as "module:function"; loaded only when a figure is drawn."""
    text_columns: int = 1
    """Number of text columns at the left."""
    group_starts: tuple[int, ...] = ()
    """Rows at which another model begins."""
    notes: list[str] = field(default_factory=list)
    lacks: tuple[tuple[str, str], ...] = ()
    """What the run has no records for, each with the command that makes them; the page has one list for all tables."""
    fills: str = ""
    """Note below the table, in files and on a screen, that says how to make what is missing."""
    drawn: list[Record] | None = None
    """The records that the figure shows, if they differ from `records`."""
    columns: tuple[str, ...] = ()
    """The record key that each column of body shows, "" for none; only if both have the same rows. The page sorts by
    these values, or without them by the numbers that are shown."""

    @property
    def all_notes(self) -> list[str]:
        """Notes to print below the table where there is no list of what is missing."""
        return [*self.notes, *([self.fills] if self.fills else [])]


def setting_record(setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return the columns that every table begins with: what was run, and how many seeds of it finished."""
    plain = setting.to_dict()
    return {**{name: plain[name] for name in CELL_COLUMNS}, "seeds": len(results)}


def baseline_results(run: Run, setting: Cell) -> list[CellResult]:
    """Return the results that a setting's memory and speed are compared with: top-k, full residual, kept gradients.

    They do the same work. If several qualify, those nearest to the setting in steps and density are taken, all seeds.
    """
    nearest = min(
        finished_like(run, setting, SAME_WORK, BASELINE),
        key=lambda other: (
            other.optimizer != setting.optimizer,
            other.learning_rate != setting.learning_rate,
            other.steps != setting.steps,
            abs(other.density - setting.density),
        ),
        default=None,
    )
    return run.settings[nearest] if nearest else []


def by_seed(results: Sequence[CellResult]) -> dict[int, float]:
    """Return the metric of each seed."""
    return {result.cell.seed: float(result.metric) for result in results if result.metric is not None}


def finished_like(run: Run, setting: Cell, same: Sequence[str], wanted: dict[str, Any]) -> list[Cell]:
    """Return the settings that have results, the `wanted` values, and the values of `setting` in the fields `same`."""
    values = {name: getattr(setting, name) for name in same} | wanted
    finished = (other for other, results in run.settings.items() if results)
    return [other for other in finished if all(getattr(other, name) == value for name, value in values.items())]


def by_model(
    run: Run, records: Sequence[Record], text: Callable[[Record], str], headings: dict[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Return head and body of a view of the records of all settings, with one row per scheme and one column per model.

    text: the text of a record; a setting of which no seed finished shows its status instead.
    """
    settings = list(run.settings)
    labels = short_labels(settings)
    models = list(dict.fromkeys(setting.model for setting in settings))
    shown = {
        (label, setting.model): text(record) if record["seeds"] else hole_text(run, setting)
        for label, setting, record in zip(labels, settings, records, strict=True)
    }
    body = [[label, *(shown.get((label, model), ABSENT) for model in models)] for label in dict.fromkeys(labels)]
    return ["Scheme, gradients", *(headings.get(model, model) for model in models)], body


def hole_text(run: Run, setting: Cell) -> str:
    """Return the status of a setting without a finished seed, taken from its first missing cell."""
    return next((run.holes[cell].status for cell in run.cells_of.get(setting, []) if cell in run.holes), ABSENT)


# --- Tables as CSV (raw values), as Markdown, as LaTeX (booktabs and longtable), and as text for a screen ---

SCREEN = 110
"""Letters in a line of text on a screen."""


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
    lines = [table.title.upper(), *textwrap.wrap(table.reading, SCREEN), "", head, "─" * len(head)]
    for index, row in enumerate(body):
        lines += ["", row] if index and index in table.group_starts else [row]
    return "\n".join([*lines, *(line for note in table.all_notes for line in textwrap.wrap(note, SCREEN))])


def to_list(holes: Sequence[Hole]) -> str:
    """Return what is missing, why, and the command that fills each hole."""
    lines = [f"MISSING: {len(holes)} cell{'s' if len(holes) > 1 else ''}"]
    for hole in holes:
        lines += [f"  {hole.name}: {hole.status}, {hole.reason}", f"    {hole.command}"]
    return "\n".join(lines)


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
