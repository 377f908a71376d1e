"""The figure of tensors: what the largest of each model hold with the baseline, and with the scheme."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.record import STATE_FIELDS
from benchmarks.report.items import group_title
from benchmarks.report.panels import INK, STYLES
from benchmarks.report.table import Record, Table

LARGEST = 10
SHARE = 0.01
"""Of the largest group, below which there is no bar to be seen."""
HEIGHT = 0.36
"""Of a bar, of the room that the two of one group have."""
WORDS = ("P parameters", "G gradients", "R residuals", "O optimizer states")


def draw_items(table: Table) -> Figure:
    """Return the figure: a panel a model; of each group of alike tensors two bars, the baseline's above."""
    shown = [record for record in table.records if record["shown"]]
    models = list(dict.fromkeys(record["model"] for record in shown))
    panels_groups = [_largest([record for record in shown if record["model"] == model]) for model in models]
    heights = [0.8 + 0.44 * len(groups) for groups in panels_groups]
    figure = Figure(figsize=(9.0, sum(heights) + 0.5), layout="constrained")
    panels = figure.subplots(len(models), 1, squeeze=False, height_ratios=heights).flatten()
    for panel, groups in zip(panels, panels_groups, strict=True):
        _panel(panel, groups)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=words)
        for (_, colour, hatch), words in zip(STYLES, WORDS, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _largest(records: Sequence[Record]) -> list[list[Record]]:
    """The groups of alike tensors that hold most with the baseline."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["alike"], []).append(record)
    by_size = sorted(groups.values(), key=lambda group: -sum(_bytes(group, "baseline_")))[:LARGEST]
    least = SHARE * sum(_bytes(by_size[0], "baseline_"))
    return [group for group in by_size if sum(_bytes(group, "baseline_")) >= least]


def _bytes(group: Sequence[Record], when: str) -> list[int]:
    return [sum(record[f"{when}{name}"] for record in group) for name in STATE_FIELDS]


def _panel(panel: Axes, groups: Sequence[Sequence[Record]]) -> None:
    for shift, when in ((-HEIGHT / 2, "baseline_"), (HEIGHT / 2, "")):
        places = [row + shift for row in range(len(groups))]
        left = [0.0] * len(groups)
        for held, (_, colour, hatch) in zip(
            zip(*(_bytes(group, when) for group in groups), strict=True), STYLES, strict=True
        ):
            widths = [one / 2**20 for one in held]
            panel.barh(places, widths, HEIGHT, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        for place, end in zip(places, left, strict=True):
            text = "before" if when else "after"
            panel.annotate(text, (end, place), (3, 0), textcoords="offset points", va="center", fontsize=7, color=INK)
    first = groups[0][0]
    panel.set_yticks(range(len(groups)), [_label(group) for group in groups], fontsize=8)
    panel.set_ylim(len(groups) - 0.4, -0.6)
    panel.set_title(
        f"{first['model']}: {first['scheme']}, {first['gradients']}", loc="left", fontweight="bold", color=INK
    )
    panel.set_xlabel("MiB, before (baseline, kept) and after")
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.margins(x=0.1)


def _label(group: Sequence[Record]) -> str:
    """In two lines: the name is often long."""
    name, _, shape = group_title(group[0]["alike"], group).rpartition(", ")
    return f"{name}\n{shape}"
