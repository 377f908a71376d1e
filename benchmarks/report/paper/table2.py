"""Table 2 (experiment 2): the metric on the large cluster."""

from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.spec import BASELINE, RESIREDUCE, Line, Spec, against
from benchmarks.report.table import Table

TOPK = {"compressor": "topk", "density": 0.01}

SPEC = Spec(
    name="table2",
    title="Table 2: metric on 64 GPUs",
    reading=(
        "Metric after training, mean over n seeds ± half of its 95 % interval; the difference to Baseline is taken "
        "seed by seed. Higher is better but for perplexity."
    ),
    parts=("exp2-cloud",),
    lines=(
        Line("Baseline", {**BASELINE, **TOPK}, published="table2-baseline-{model}"),
        Line("ResiReduce", {**RESIREDUCE, **TOPK}, published="table2-resireduce-{model}"),
    ),
    more=lambda setting: setting.compressor == "topk" and setting.scheme in ("baseline", "w+2d"),
    compared=("Against Baseline", against(BASELINE)),
)


def table2(run: Run) -> Table:
    """Return Table 2 for a run."""
    return make_table(run, SPEC)
