"""Tables as CSV (raw values), as Markdown, and as text for a screen."""

import csv
import io
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from benchmarks.report.load import Hole
from benchmarks.report.table import Table


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
    text = [f"## {table.title}", table.reading, "\n".join(lines), *table.notes]
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
    return "\n".join([*lines, *(line for note in table.notes for line in _wrap(note))])


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
