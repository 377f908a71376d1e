"""Table 3 (experiment 4): other compressors."""

from benchmarks.cell import Cell
from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.spec import KEPT, Line, Spec, Wanted, against
from benchmarks.report.table import Table

SCHEMES = {"baseline": "Baseline", "w+2d": "ResiReduce"}


def _line(compressor: str, scheme: str) -> Line:
    density = {"density": 0.01} if compressor == "dgc" else {}
    wanted: Wanted = {"compressor": compressor, "scheme": scheme, "options": {}, **KEPT, **density}
    word = SCHEMES[scheme]
    return Line(f"{word}-{compressor.upper()}", wanted, published=f"table3-{word.lower()}-{compressor}-{{model}}")


def _more(setting: Cell) -> bool:
    """The compressors that neither of the paper's other tables shows."""
    return setting.compressor not in ("none", "topk") and setting.scheme in SCHEMES


SPEC = Spec(
    name="table3",
    title="Table 3: other compressors",
    reading=(
        "Metric after training, mean over n seeds ± half of its 95 % interval; the difference to Baseline with the "
        "same compressor is taken seed by seed. Higher is better but for perplexity."
    ),
    parts=("exp4",),
    lines=tuple(_line(compressor, scheme) for compressor in ("qsgd", "dgc") for scheme in SCHEMES),
    more=_more,
    compared=("Against Baseline", against({"scheme": "baseline", "options": {}, **KEPT})),
    stated=("exp4-gain-dgc-vgg19",),
)


def table3(run: Run) -> Table:
    """Return Table 3 for a run."""
    return make_table(run, SPEC)
