"""The figure of densities: for each observed cell some groups side by side, a line a member (paper, Fig. 4)."""

from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report.panels import INK
from benchmarks.report.table import Record, Table

GROUPS = 4
"""Of a cell are drawn, evenly spread over the model; the table's CSV has all."""
CELLS = 8
"""Are drawn at most."""
LINES = (("#37474f", "-"), ("#e69f00", "--"), ("#cc4125", "-."), ("#0072b2", ":"), ("#009e73", "-"), ("#8a5a9e", "--"))
RANGE = 3.0
"""Standard deviations of the group that are shown, to either side."""


def draw_densities(table: Table) -> Figure:
    """Return the figure: a row a cell, a panel a group."""
    cells: list[list[Record]] = []
    for record in table.drawn or table.records:
        if record["group"] == "all":
            cells.append([])
        else:
            cells[-1].append(record)
    cells = cells[:CELLS]
    figure = Figure(figsize=(3.2 * GROUPS, 2.5 * len(cells)), layout="constrained")
    for panels, groups in zip(figure.subplots(len(cells), GROUPS, squeeze=False), cells, strict=True):
        for panel, group in zip(panels, spread(groups, GROUPS), strict=False):
            _panel(panel, group)
        panels[0].set_ylabel("density", fontsize=8)
        for panel in panels[len(groups) :]:
            panel.set_visible(False)
    return figure


def spread(items: list[Record], count: int) -> list[Record]:
    """Return `count` of the items, first and last among them, or all if there are no more."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _panel(panel: Axes, group: Record) -> None:
    bins = group["bins"]
    width = (bins["high"] - bins["low"]) / bins["count"]
    middles = [bins["low"] + (i + 0.5) * width for i in range(bins["count"])]
    for number, (density, (colour, style)) in enumerate(zip(group["densities"], cycle(LINES), strict=False)):
        panel.plot(middles, density, style, color=colour, linewidth=1.2, label=f"member {number}")
    panel.set_xlim(-RANGE, RANGE)
    panel.set_ylim(bottom=0)
    panel.set_title(
        f"{group['model']}, {group['world_size']} ranks\n{group['group']}", fontsize=8, loc="left", color=INK
    )
    panel.set_xlabel("residual / its group's standard deviation", fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=7, frameon=False)
