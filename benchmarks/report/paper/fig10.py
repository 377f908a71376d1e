"""Fig. 10 (experiment 2): convergence and time of training."""

from math import fsum
from statistics import mean

from benchmarks.record import CellResult
from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.spec import BASELINE, NO_COMPRESSION, RESIREDUCE, Line, Spec, against
from benchmarks.report.table import Record, Table

TOPK = {"compressor": "topk", "density": 0.01}
POINTS = 200
"""Of a curve, at most."""

SPEC = Spec(
    name="fig10",
    title="Fig. 10: convergence and time of training",
    reading=(
        "Metric at the end of training, mean over n seeds ± half of its 95 % interval; hours are wall time, mean over "
        "seeds. The figure shows the metric over steps and over time."
    ),
    parts=("exp2-local",),
    lines=(
        Line("Non-Compression", NO_COMPRESSION, published="exp2-local-none-{model}"),
        Line("Baseline", {**BASELINE, **TOPK}, published="exp2-local-baseline-{model}"),
        Line("ResiReduce", {**RESIREDUCE, **TOPK}, published="exp2-local-resireduce-{model}"),
    ),
    more=lambda setting: setting.compressor in ("topk", "none"),
    compared=("Against Baseline", against({**BASELINE, "density": 0.01})),
    columns=(("Hours", "hours_text"),),
    figure="benchmarks.report.paper.curves:draw_convergence",
)


def fig10(run: Run) -> Table:
    """Return Fig. 10 for a run."""
    return make_table(run, SPEC, more=times)


def times(results: list[CellResult]) -> Record:
    """Return the wall time of a setting's trainings, and its metric over the steps, mean over the seeds at each."""
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
    seen: dict[float, list[float]] = {}
    for result in results:
        for step, value in result.metric_history:
            if step is not None and value is not None:
                seen.setdefault(step, []).append(value)
    points = [
        [step, fsum(values) / len(values)] for step, values in sorted(seen.items()) if len(values) == len(results)
    ]
    every = -(-len(points) // POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
