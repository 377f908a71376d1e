"""The tables of a report, by name: a new one is one function and one line here."""

from collections.abc import Callable

from benchmarks.report.accuracy import accuracy
from benchmarks.report.distributions import distributions
from benchmarks.report.items import items
from benchmarks.report.load import Run
from benchmarks.report.memory import memory
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
ON_SCREEN = ("memory", "accuracy")
