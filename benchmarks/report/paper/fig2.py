"""Fig. 2 (observation 1): the share of residuals in the model states."""

from benchmarks.cell import Cell
from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.quantity import SHARE
from benchmarks.report.paper.spec import BASELINE, Line, Spec
from benchmarks.report.table import Table


def _more(setting: Cell) -> bool:
    """Whatever stores a full residual, or one in fewer bits."""
    return setting.scheme == "baseline"


SPEC = Spec(
    name="fig2",
    title="Fig. 2: residuals in the model states",
    reading="Bytes of the residuals in those of the model states (parameters, gradients, residuals, optimizer states).",
    parts=("fig2",),
    lines=(Line("Baseline", {**BASELINE, "density": 0.01}, SHARE, published="fig2-residual-share-{model}"),),
    more=_more,
    stated=("fig2-residual-share-overall",),
)


def fig2(run: Run) -> Table:
    """Return Fig. 2 for a run."""
    return make_table(run, SPEC)
