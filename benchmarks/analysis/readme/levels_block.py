"""The table of docs/nodes.md about two levels: metrics of `config/two-levels.yaml`, over seeds. Imports no torch."""

from typing import Any

from benchmarks.analysis.labels import markdown_table, signed_with_half, with_half
from benchmarks.analysis.statistics import interval, paired

Row = dict[str, Any]
HEAD = ("", "Seeds", "Metric", "Against flat", "Held between two steps, at the fullest", "Sent between nodes")
SENT = {("flat", 0.01): "as flat", ("node", 0.01): "half as much", ("node", 0.02): "as flat"}
"""Rows by hierarchy and density, with two ranks a node: what a node's ranks send, relative to flat."""


def two_levels(values: dict[str, Any]) -> str:
    """Each model's metric without compression, flat and by nodes; beside flat, paired differences from it."""
    rows: list[list[str]] = []
    for model in dict.fromkeys(row["model"] for row in values["rows"]):
        of_model = [row for row in values["rows"] if row["model"] == model]
        flat = next(row for row in of_model if row["hierarchy"] == "flat" and row["compressor"] != "none")
        rows += [_row(model, row, flat) for row in of_model]
    return markdown_table(HEAD, rows, "lrrrrr")


def _row(model: str, row: Row, flat: Row) -> list[str]:
    metric = with_half(row["metric_mean"], row["metric_half_width"], 2)
    against = interval(paired(_metrics(row), _metrics(flat)))
    assert against is not None
    difference = "" if row is flat else signed_with_half(against.mean, against.half_width, 2)
    sent = "" if row["compressor"] == "none" else SENT[row["hierarchy"], row["density"]]
    held = f"{100 * row['normalised']:.1f}, {100 * row['peak_normalised']:.1f} %"
    return [f"{model}: {_way(row)}", str(row["seeds"]), f"{row['metric_name']} {metric}", difference, held, sent]


def _way(row: Row) -> str:
    if row["compressor"] == "none":
        return "no compression"
    return f"{'by nodes' if row['hierarchy'] == 'node' else 'flat'}, density {row['density']}"


def _metrics(row: Row) -> dict[int, float]:
    return {int(seed): value for seed, value in row["metrics"].items()}
