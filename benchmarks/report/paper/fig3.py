"""Fig. 3 (observation 2): the metric over the share of the residuals that is stored."""

from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.spec import BASELINE, KEPT, Line, Spec, against
from benchmarks.report.table import Table

SHARES = (0.2, 0.4, 0.52, 0.6, 0.8)
TOPK = {"compressor": "topk", "density": 0.01, **KEPT}


def _line(share: float) -> Line:
    wanted = {"scheme": "partial", "options": {"ratio": share}, **TOPK}
    return Line(f"{share:.0%} stored", wanted, published=f"fig3-{{model}}-stored-{share * 100:.0f}")


SPEC = Spec(
    name="fig3",
    title="Fig. 3: how much of the residuals is needed",
    reading=(
        "Metric after training with a random part of every residual stored, mean over n seeds ± half of its 95 % "
        "interval; the difference to all stored is taken seed by seed."
    ),
    parts=("fig3",),
    lines=(
        *map(_line, SHARES),
        Line("100% stored", {"scheme": "baseline", **TOPK}, published="fig3-{model}-stored-100"),
    ),
    more=lambda setting: setting.compressor == "topk" and setting.scheme in ("partial", "baseline"),
    compared=("Against all stored", against(BASELINE)),
    figure="benchmarks.report.paper.curves:draw_shares",
)


def fig3(run: Run) -> Table:
    """Return Fig. 3 for a run."""
    return make_table(run, SPEC)
