"""Fig. 8: rows alone (d), or rows and columns (2d), of specific layers."""

from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.quantity import DROP
from benchmarks.report.paper.spec import BASELINE, KEPT, NO_COMPRESSION, Line, Spec, against
from benchmarks.report.table import Table

TOPK = {"compressor": "topk", "density": 0.01, **KEPT}


def _rows(share: float) -> dict[str, object]:
    return {"scheme": "d", "options": {"row_ratio": share}, **TOPK}


SPEC = Spec(
    name="fig8",
    title="Fig. 8: rows, or rows and columns",
    reading=(
        "Metric after training, mean over n seeds ± half of its 95 % interval; per cent: what is stored of the "
        "residuals of specific layers. The paper's Baseline is here training without compression."
    ),
    parts=("fig8",),
    lines=(
        Line("Non-Compression", NO_COMPRESSION),
        Line("full residuals", {"scheme": "baseline", "options": {}, **TOPK}),
        *(Line(f"1d ({share:.0%})", _rows(share)) for share in (0.75, 0.5, 0.25)),
        Line("2d (25%)", {"scheme": "2d", "options": {}, **TOPK}),
        Line(
            "1d: lost from 50% to 25%",
            _rows(0.25),
            DROP,
            against({"options": {"row_ratio": 0.5}}),
            published="fig8-{model}-d-drop",
        ),
    ),
    more=lambda setting: setting.compressor == "topk" and setting.scheme in ("d", "2d"),
    compared=("Against full residuals", against(BASELINE)),
)


def fig8(run: Run) -> Table:
    """Return Fig. 8 for a run."""
    return make_table(run, SPEC)
