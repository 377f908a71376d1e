"""Fig. 6: which member of a group may stand for it, that of the largest or of the smallest norm?"""

from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.quantity import GAIN
from benchmarks.report.paper.spec import BASELINE, KEPT, Line, Spec, against
from benchmarks.report.table import Table

TOPK = {"compressor": "topk", "density": 0.01, **KEPT}


def _member(norm: int, smallest: bool) -> dict[str, object]:
    return {"scheme": "member", "options": {"norm": norm, "smallest": smallest}, **TOPK}


def _lines(norm: int) -> tuple[Line, ...]:
    smallest = against({"options": {"norm": norm, "smallest": True}})
    return (
        Line(f"L{norm}-L, largest norm", _member(norm, False)),
        Line(f"L{norm}-S, smallest norm", _member(norm, True)),
        Line(f"L{norm}: gain of largest over smallest", _member(norm, False), GAIN, smallest),
    )


SPEC = Spec(
    name="fig6",
    title="Fig. 6: largest or smallest norm",
    reading=(
        "Metric after training with the residual of one member for all of its group, mean over n seeds ± half of its "
        "95 % interval; then the gain of the largest over the smallest, seed by seed, in per cent of the latter's "
        "metric (of perplexity: how much lower)."
    ),
    parts=("fig6",),
    lines=(Line("Baseline", {"scheme": "baseline", "options": {}, **TOPK}), *_lines(1), *_lines(2)),
    more=lambda setting: setting.compressor == "topk" and setting.scheme == "member",
    compared=("Against Baseline", against(BASELINE)),
    stated=("fig6-gain-min", "fig6-gain-max"),
)


def fig6(run: Run) -> Table:
    """Return Fig. 6 for a run."""
    return make_table(run, SPEC)
