"""Table 1: the six models and their sizes."""

from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.quantity import SIZE
from benchmarks.report.paper.spec import BASELINE, Line, Spec
from benchmarks.report.table import Table

SPEC = Spec(
    name="table1",
    title="Table 1: models",
    reading=(
        "Bytes of the parameters that a rank holds, float32. The paper's MB and GB are MiB for ResNet-50, VGG-19 and "
        "BERT-base, and decimal for the others."
    ),
    parts=("exp1-local", "exp1-cloud"),
    lines=(Line("parameters", BASELINE, SIZE, published="table1-size-{model}"),),
    more=lambda setting: True,
    each_once=True,
    notes=(
        "The paper's 97.5 MB fit ResNet-50 with 1000 classes; the one trained on CIFAR-100 has 90.4 MiB. Its 3.25 GB "
        "of GPT-2 large are a checkpoint with the causal masks.",
    ),
)


def table1(run: Run) -> Table:
    """Return Table 1 for a run."""
    return make_table(run, SPEC)
