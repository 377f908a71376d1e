"""The tables of docs/results.md about a slow link, from the figures of `python -m benchmarks links`. No torch."""

from typing import Any

from benchmarks.analysis.labels import markdown_table
from benchmarks.analysis.readme.measured import Measured

Row = dict[str, Any]
MERGED = {"none": "each tensor by itself", "one": "`one` message"}
"""Words for some merging rules; the others go by their name."""


def links(measured: Measured) -> str | None:
    """Seconds of a step by compressor, flat and by nodes; None while this was not measured."""
    if not measured.has("links"):
        return None
    of_all = measured.load("links")["rows"]
    rows = [row for row in of_all if row["merge"] == "none"]
    plain = next(row for row in rows if row["compressor"] == "none" and row["hierarchy"] == "flat")
    flat, node = ([row for row in rows if row["hierarchy"] == level] for level in ("flat", "node"))
    body = [
        [_compressor(one), _seconds(one), _faster(plain, one), _seconds(other), _faster(plain, other)]
        for one, other in zip(flat, node, strict=True)
    ]
    body += [
        [f"no compression, {_rule(row['merge'])}", _seconds(row), _faster(plain, row), "", ""]
        for row in of_all
        if row["compressor"] == "none" and row["merge"] != "none"
    ]
    return markdown_table(("", "Flat, s a step", "Speed-up", "By nodes, s a step", "Speed-up"), body, "lrrrr")


def slow_link_claim(measured: Measured) -> str:
    """Speed-ups over no compression of top-k at density 0.01: flat, by nodes, and flat in one message."""
    rows = measured.load("links")["rows"]
    plain = next(row for row in rows if row["compressor"] == "none" and row["hierarchy"] == "flat")
    found = {
        (row["hierarchy"], row["merge"]): _faster(plain, row)
        for row in rows
        if row["compressor"] == "topk" and row["density"] == 0.01
    }
    return (
        f"a step {found['flat', 'none']} times as fast as without compression, {found['flat', 'one']} in one message, "
        f"{found['node', 'none']} by nodes, which send half as much and hold half the residuals"
    )


def merged_links(measured: Measured) -> str | None:
    """Messages and seconds of a step by merging rule, at density 0.01; None while this was not measured."""
    if not measured.has("links"):
        return None
    rows = [row for row in measured.load("links")["rows"] if row["compressor"] == "topk" and row["density"] == 0.01]
    flat, node = ([row for row in rows if row["hierarchy"] == level] for level in ("flat", "node"))
    body = [
        [_rule(one["merge"]), str(one["messages"]), _seconds(one), str(other["messages"]), _seconds(other)]
        for one, other in zip(flat, node, strict=True)
    ]
    return markdown_table(("", "Messages, flat", "s a step", "Messages, by nodes", "s a step"), body, "lrrrr")


def _compressor(row: Row) -> str:
    if row["compressor"] == "none":
        return "no compression"
    return f"`{row['compressor']}`" + (f", density {row['density']}" if row["compressor"] == "topk" else "")


def _rule(merge: str | int) -> str:
    return f"up to {merge:,} bytes" if isinstance(merge, int) else MERGED.get(merge, f"`{merge}`")


def _seconds(row: Row) -> str:
    return f"{row['median']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def _faster(plain: Row, row: Row) -> str:
    return f"{plain['median'] / row['median']:.1f}"
