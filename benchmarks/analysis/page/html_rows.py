"""The rows of a table for the page: the text that is shown, and the number that it is sorted by."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.analysis.labels import MINUS
from benchmarks.analysis.table import Table

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
    return [Shown(text, column < table.text_columns) for column, text in enumerate(table.head)][
        bool(table.group_starts) :
    ]


def groups_of(table: Table) -> list[Group]:
    """Return a table's rows in groups; a table without groups gives one group without a name."""
    found = []
    for start, end in pairwise([*(table.group_starts or [0]), len(table.body)]):
        name = table.body[start][0] if table.group_starts else ""
        rows = [_row(table, index) for index in range(start, end)]
        found.append(Group(name, rows, all(_not_measured(table, index) for index in range(start, end))))
    return found


def is_empty(table: Table) -> bool:
    """Say whether nothing of a table has been measured although it has rows."""
    return all(_not_measured(table, index) for index in range(len(table.body)))


def is_of_paper(table: Table) -> bool:
    """Say whether a table shows published values beside the measured ones."""
    return bool(table.records) and "published" in table.records[0]


def measured_words(table: Table) -> str:
    """Return how many rows a table has, and how many of them were measured."""
    rows = len(table.body)
    missing = sum(_not_measured(table, index) for index in range(rows))
    text = f"{rows} row{'s' if rows > 1 else ''}"
    return f"{text}, {rows - missing} of them measured" if missing else text


def leading_number(text: str) -> float | None:
    """Return the number that a text begins with, sizes in bytes; None if there is none."""
    found = LEADING.match(text.strip().replace(MINUS, "-").removeprefix("±"))
    if not found:
        return None
    return float(found[1].replace(",", "")) * BYTES.get(found[2], 1)


def _row(table: Table, index: int) -> list[Shown]:
    return [
        Shown(text, True) if column < table.text_columns else Shown(text, False, _value(table, index, column))
        for column, text in enumerate(table.body[index])
    ][bool(table.group_starts) :]


def _not_measured(table: Table, index: int) -> bool:
    return len(table.records) == len(table.body) and table.records[index].get("measured", "") is None


def _value(table: Table, index: int, column: int) -> str:
    """Return the record's own value if the table names its column, else the number shown, or "" without either."""
    raw: Any = table.records[index].get(table.columns[column]) if table.columns else None
    value = raw if isinstance(raw, int | float) else leading_number(table.body[index][column])
    return "" if value is None or not math.isfinite(value) else f"{value:.12g}"
