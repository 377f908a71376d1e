"""The tables of a report, by name: a new one is one function and one line here."""

from collections.abc import Callable

from benchmarks.report.accuracy import accuracy
from benchmarks.report.distributions import distributions
from benchmarks.report.items import items
from benchmarks.report.load import Run
from benchmarks.report.memory import memory
from benchmarks.report.paper.fig2 import fig2
from benchmarks.report.paper.fig3 import fig3
from benchmarks.report.paper.fig4 import fig4
from benchmarks.report.paper.fig6 import fig6
from benchmarks.report.paper.fig8 import fig8
from benchmarks.report.paper.fig9 import fig9a, fig9b
from benchmarks.report.paper.fig10 import fig10
from benchmarks.report.paper.fig11 import fig11
from benchmarks.report.paper.table1 import table1
from benchmarks.report.paper.table2 import table2
from benchmarks.report.paper.table3 import table3
from benchmarks.report.paper.table4 import table4
from benchmarks.report.seeds import seeds
from benchmarks.report.table import Table
from benchmarks.report.throughput import throughput

TABLES: dict[str, Callable[[Run], Table]] = {
    "memory": memory,
    "items": items,
    "accuracy": accuracy,
    "seeds": seeds,
    "throughput": throughput,
    "distributions": distributions,
}
PAPER_TABLES: dict[str, Callable[[Run], Table]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "fig2": fig2,
    "fig3": fig3,
    "fig4": fig4,
    "fig6": fig6,
    "fig8": fig8,
    "fig9a": fig9a,
    "fig9b": fig9b,
    "fig10": fig10,
    "fig11": fig11,
}
"""The tables and figures of the paper."""
ON_SCREEN = ("memory", "accuracy")


def all_tables() -> dict[str, Callable[[Run], Table]]:
    """Return all tables of a report."""
    return {**TABLES, **PAPER_TABLES}
