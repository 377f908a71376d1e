"""The tables of a report, by name; adding one takes one function and one line here."""

from collections.abc import Callable
from functools import partial

from benchmarks.analysis.load_run import Run
from benchmarks.analysis.paper.make import load_specs, make_table, with_densities
from benchmarks.analysis.table import Table
from benchmarks.analysis.tables.run_tables import accuracy, distributions, memory, moments, throughput

TABLES: dict[str, Callable[[Run], Table]] = {
    "memory": memory,
    "moments": moments,
    "accuracy": accuracy,
    "throughput": throughput,
    "distributions": distributions,
}
PAPER_TABLES: dict[str, Callable[[Run], Table]] = {
    name: partial(make_table, spec=spec) for name, spec in load_specs().items()
}
PAPER_TABLES |= {"fig4": lambda run: with_densities(make_table(run, load_specs()["fig4"]), run)}
"""The tables and figures of the paper."""
ON_SCREEN = ("memory", "accuracy")
TRADE_OFF = "trade-off"
"""The figure of memory against accuracy, which belongs to two tables."""
FIGURE_FORMS = ("svg", "png", "pdf")


def all_tables() -> dict[str, Callable[[Run], Table]]:
    """Return all tables of a report."""
    return {**TABLES, **PAPER_TABLES}
