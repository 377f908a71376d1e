"""Extras of single tables of the paper: columns of their own, or another figure."""

from dataclasses import replace
from itertools import pairwise
from math import fsum
from statistics import mean

from benchmarks.analysis.grouping import first_of, grouped
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Record, Table
from benchmarks.analysis.tables.distribution_table import distributions
from benchmarks.analysis.tables.throughput import mean_of
from benchmarks.core.record import CellResult

POINTS = 200
"""Most points that a curve has."""


def times(results: list[CellResult]) -> Record:
    """Return the mean wall time of a setting's trainings, and its mean metric over the seeds at each step."""
    hours = [float(result.wall_seconds or 0) / 3600 for result in results]
    average = mean(hours) if hours else None
    return {
        "hours": average,
        "hours_text": "" if average is None else f"{average:.2f}" if average >= 0.1 else f"{average:.4f}",
        "steps_taken": max((result.steps for result in results), default=None),
        "curve": curve(results),
    }


def curve(results: list[CellResult]) -> list[list[float]]:
    """Return [step, mean metric] for steps at which every seed was measured, thinned to POINTS."""
    pairs = (pair for result in results for pair in result.metric_history)
    seen = grouped((step, value) for step, value in pairs if step is not None and value is not None)
    points = [
        [step, fsum(values) / len(values)] for step, values in sorted(seen.items()) if len(values) == len(results)
    ]
    every = -(-len(points) // POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]


def speeds(results: list[CellResult]) -> Record:
    """Return a setting's images or tokens per second, mean over its seeds."""
    speed = mean_of(results, "units_per_second")
    unit = results[0].unit if results else None
    return {
        "throughput": speed,
        "throughput_unit": unit,
        "throughput_text": "" if speed is None else f"{speed:,.0f} {unit}",
    }


def with_densities(table: Table, run: Run) -> Table:
    """Return Fig. 4 with the densities of groups as its figure, from each model's first observed cell, if any."""
    records = distributions(run).records
    places = [place for place, record in enumerate(records) if record["group"] == "all"]
    cells = [records[start:end] for start, end in pairwise([*places, len(records)])]
    drawn = [record for cell in first_of((its[0]["model"], its) for its in cells).values() for record in cell]
    return replace(table, drawn=drawn, figure=DENSITIES) if drawn else table


DENSITIES = "benchmarks.analysis.charts.curves_chart:densities_chart"
