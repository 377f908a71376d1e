"""Tell what is odd about the records of a run, for commands whose figures are of them all. Imports no torch."""

import sys
from collections.abc import Iterator

from benchmarks.analysis.claims.evidence import doubts
from benchmarks.analysis.claims.judge import NUMERIC, fact_of
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.left_out import left_out
from benchmarks.analysis.load_run import Run
from benchmarks.core.cell import Cell


def print_doubts(run: Run) -> None:
    """Print to stderr which records of a run the ledger does not count, how their origins differ, and what its folder
    has besides."""
    for line in [*doubts(run, "These figures count it"), *mixed(run), *uncommitted(run), *left_out(run)]:
        print(f"Note: {line}", file=sys.stderr)


def mixed(run: Run) -> Iterator[str]:
    """Yield a line if records of one model and the same data differ in what can change their metrics.

    A record that does not say differs from none, as one of a training in the process that measures it.
    """
    for (model, *_), records in grouped((_inputs(one.cell), one) for one in run.results.values()).items():
        told = {fact: {str(value) for one in records if (value := fact_of(one.provenance, fact))} for fact in NUMERIC}
        if facts := [fact for fact, values in told.items() if len(values) > 1]:
            yield f"records of {model} differ in {', '.join(facts)}: so may their figures, whatever their settings are"


def uncommitted(run: Run) -> Iterator[str]:
    """Yield a line if code that no commit has made records of a run."""
    if count := sum(one.provenance.get("dirty") is True for one in run.results.values()):
        yield f"{count} of {len(run.results)} records are of code with changes that are not committed"


def _inputs(cell: Cell) -> tuple[str, ...]:
    """Return what the hash of a cell's data depends on, its model first."""
    return cell.model, cell.data, str(cell.length), *cell.released
