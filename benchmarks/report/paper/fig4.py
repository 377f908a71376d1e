"""Fig. 4: residuals of a reusable group are distributed alike."""

from dataclasses import replace

from benchmarks.report.distributions import distributions
from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.quantity import APART
from benchmarks.report.paper.spec import BASELINE, Line, Spec
from benchmarks.report.table import Record, Table

SPEC = Spec(
    name="fig4",
    title="Fig. 4: residuals of a group are alike",
    reading=(
        "How many times farther apart residuals of different groups are than those of one group (1-Wasserstein, mean "
        "over pairs, rank 0, after the last step). Published: how many adjacent layers' densities nearly overlap. The "
        "densities of every group: tables/distributions.csv."
    ),
    parts=("fig4",),
    lines=(
        Line(
            "between / within groups",
            {**BASELINE, "density": 0.01, "observe": ("distributions",)},
            APART,
            published="fig4-{model}-members",
        ),
    ),
    more=lambda setting: "distributions" in setting.observe,
    figure="benchmarks.report.densities:draw_densities",
)


def fig4(run: Run) -> Table:
    """Return Fig. 4 for a run: a row a cell, and the densities of its groups in the figure."""
    drawn = first_of_each_model(distributions(run).records)
    table = make_table(run, SPEC)
    return replace(table, drawn=drawn) if drawn else replace(table, figure="")


def first_of_each_model(records: list[Record]) -> list[Record]:
    """Return the records of each model's first cell: those of its groups follow that of all."""
    found: dict[str, list[Record]] = {}
    model = ""
    for record in records:
        if record["group"] == "all":
            model = "" if record["model"] in found else record["model"]
            found.setdefault(record["model"], [])
        if model:
            found[model].append(record)
    return [record for group in found.values() for record in group]
