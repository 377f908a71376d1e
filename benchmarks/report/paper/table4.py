"""Table 4 (experiment 5): densities."""

from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.spec import NO_COMPRESSION, RESIREDUCE, Line, Spec, against
from benchmarks.report.table import Table

DENSITIES = (0.1, 0.05, 0.01)

SPEC = Spec(
    name="table4",
    title="Table 4: densities",
    reading=(
        "Metric after training, mean over n seeds ± half of its 95 % interval; the difference to no compression is "
        "taken seed by seed, in points. Higher is better but for perplexity."
    ),
    parts=("exp5",),
    lines=(
        Line("Non-Compression", NO_COMPRESSION, published="table4-none-{model}"),
        *(
            Line(
                f"ResiReduce-{density}",
                {**RESIREDUCE, "compressor": "topk", "density": density},
                published=f"table4-resireduce-{density}-{{model}}",
            )
            for density in DENSITIES
        ),
    ),
    more=lambda setting: (setting.compressor, setting.scheme) in (("none", "none"), ("topk", "w+2d")),
    compared=("Against no compression", against({**NO_COMPRESSION, "density": 1.0, "options": {}})),
    stated=tuple(f"exp5-loss-{end}-{density}" for density in DENSITIES for end in ("min", "max")),
)


def table4(run: Run) -> Table:
    """Return Table 4 for a run."""
    return make_table(run, SPEC)
