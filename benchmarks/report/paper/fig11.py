"""Fig. 11 (experiment 3): throughput over the number of GPUs."""

from statistics import mean

from benchmarks.record import CellResult
from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.quantity import SLOWER
from benchmarks.report.paper.spec import BASELINE, Line, Spec, against
from benchmarks.report.table import Record, Table

TOPK = {"compressor": "topk", "density": 0.01, "residual_dtype": None, "options": {}}
TO_BASELINE = against(BASELINE)


def _line(label: str, scheme: str, gradients: str, published: str = "") -> Line:
    return Line(label, {"scheme": scheme, "gradients": gradients, **TOPK}, SLOWER, TO_BASELINE, published)


SPEC = Spec(
    name="fig11",
    title="Fig. 11: throughput over GPUs",
    reading=(
        "Steps per second lost against Baseline on as many ranks, in per cent: lower is better, below zero is faster. "
        "Beside it the images or tokens of all ranks per second."
    ),
    parts=("exp3",),
    lines=(
        _line("Baseline", "baseline", "kept"),
        _line("ResiReduce", "w+2d", "kept", "exp3-throughput-loss-{model}"),
        _line("Baseline, streamed (ours)", "baseline", "streamed"),
        _line("ResiReduce, streamed (ours)", "w+2d", "streamed"),
    ),
    more=lambda setting: setting.residual_dtype is None and setting.scheme in ("none", "baseline", "w+2d"),
    columns=(("Per second", "throughput_text"),),
    figure="benchmarks.report.paper.curves:draw_throughput",
)


def fig11(run: Run) -> Table:
    """Return Fig. 11 for a run."""
    return make_table(run, SPEC, more=speeds)


def speeds(results: list[CellResult]) -> Record:
    """Return a setting's images or tokens per second, mean over its seeds."""
    found = [float(result.units_per_second) for result in results if result.units_per_second is not None]
    speed = mean(found) if found else None
    unit = results[0].unit if results else None
    return {
        "throughput": speed,
        "throughput_unit": unit,
        "throughput_text": "" if speed is None else f"{speed:,.0f} {unit}",
    }
