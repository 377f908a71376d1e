"""All that a run has no records for, as one list: each with the command that would make them."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.analysis.claims.show import families, waiting
from benchmarks.analysis.claims.verdict import LedgerRow
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Table


@dataclass(frozen=True)
class Gap:
    """Something that is not there."""

    what: str
    command: str
    """What fills it, to be typed in the root of the project."""
    status: str = ""
    """The status of the cell of this run that is missing; empty for what no cell of it measures."""
    reason: str = ""


def gaps(run: Run, tables: Sequence[Table], judged: Sequence[LedgerRow]) -> list[Gap]:
    """Return the run's own cells, then what no cell of it measures: of tables and of claims, once for each command."""
    cells = [Gap(hole.name, hole.command, hole.status, hole.reason) for hole in run.holes.values()]
    known = {gap.command for gap in cells}
    texts = [(command, f"{table.title.partition(':')[0]}: {what}") for table in tables for what, command in table.lacks]
    for command, names in waiting(judged).items():
        texts.append((command, f"{len(names)} claim{'s' if len(names) > 1 else ''}: {families(names)}"))
    return cells + [Gap("; ".join(those), command) for command, those in grouped(texts).items() if command not in known]
