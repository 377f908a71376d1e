"""Tables about nodes, the links between them, and levels: docs/nodes.md, docs/fsdp.md and docs/results.md. No torch."""

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import METRIC_WORDS, markdown_table, signed_with_half, with_half
from benchmarks.analysis.readme.measured import Measured, Row
from benchmarks.analysis.statistics import interval, paired

MERGED = {"none": "each tensor by itself", "one": "`one` message"}
"""Words for some merging rules; the others go by their name."""


def links(measured: Measured) -> str:
    """Seconds of a step by compressor, flat and by nodes."""
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


def merged_links(measured: Measured) -> str:
    """Messages and seconds of a step by merging rule, at density 0.01."""
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


def slow_links(measured: Measured) -> str:
    """Seconds of a step over a slow link, the part spent waiting for messages, and the speed-up."""
    cells = sorted(measured.load("slow-links")["cells"], key=lambda one: -one["median_step_seconds"])
    plain = next(one["median_step_seconds"] for one in cells if one["cell"]["compressor"] == "none")
    rows = []
    for one in cells:
        seconds = one["median_step_seconds"]
        waiting = one["phase_seconds"]["communicate"]
        rows.append([_link_label(one["cell"]), f"{seconds:.2f}", f"{waiting:.2f}", f"{plain / seconds:.1f}"])
    return markdown_table(("", "Seconds a step", "of them waiting for messages", "Speed-up"), rows, "lrrr")


def _link_label(cell: Row) -> str:
    if cell["compressor"] == "none":
        return "no compression"
    residual = (
        "" if cell["scheme"] == "none" else ", full residual" if cell["scheme"] == "baseline" else f", {cell['scheme']}"
    )
    density = f", density {cell['density']}" if cell["density"] < 1 else ""
    return f"`{cell['compressor']}`{density}{residual}"


LEVELS = ("", "Seeds", "Metric", "Against flat", "Held between two steps, at the fullest", "Sent between nodes")
SENT = {("flat", 0.01): "as flat", ("node", 0.01): "half as much", ("node", 0.02): "as flat"}
"""Rows by hierarchy and density, with two ranks a node: what a node's ranks send, relative to flat."""


def two_levels(measured: Measured) -> str:
    """Each model's metric without compression, flat and by nodes; beside flat, paired differences from it."""
    rows: list[list[str]] = []
    for model, of_model in grouped((row["model"], row) for row in measured.load("two-levels")["rows"]).items():
        flat = next(row for row in of_model if row["hierarchy"] == "flat" and row["compressor"] != "none")
        rows += [_level(model, row, flat) for row in of_model]
    return markdown_table(LEVELS, rows, "lrrrrr")


def _level(model: str, row: Row, flat: Row) -> list[str]:
    metric = with_half(row["metric_mean"], row["metric_half_width"], 2)
    against = interval(paired(_metrics(row), _metrics(flat)))
    assert against is not None
    difference = "" if row is flat else signed_with_half(against.mean, against.half_width, 2)
    sent = "" if row["compressor"] == "none" else SENT[row["hierarchy"], row["density"]]
    held = f"{100 * row['normalised']:.1f}, {100 * row['peak_normalised']:.1f} %"
    name = METRIC_WORDS.get(row["metric_name"], row["metric_name"])
    return [f"{model}: {_way(row)}", str(row["seeds"]), f"{name} {metric}", difference, held, sent]


def _way(row: Row) -> str:
    if row["compressor"] == "none":
        return "no compression"
    return f"{'by nodes' if row['hierarchy'] == 'node' else 'flat'}, density {row['density']}"


def _metrics(row: Row) -> dict[int, float]:
    return {int(seed): value for seed, value in row["metrics"].items()}


SHARDED = ("", "Perplexity", "more than the hybrid's", "Between nodes, KiB a step", "Residuals of a rank, KiB")


def sharded(measured: Measured) -> str:
    """Every way to average between two nodes: its metric over all seeds, the bytes it sends, and those a rank holds."""
    ways = grouped((row["name"], row) for row in measured.load("sharded")["rows"])
    plain = {row["seed"]: row["perplexity"] for row in ways["hybrid"]}
    return markdown_table(SHARDED, [_sharded(name, rows, plain) for name, rows in ways.items()], "lrrrr")


def _sharded(name: str, rows: list[Row], plain: dict[int, float]) -> list[str]:
    found = {row["seed"]: row["perplexity"] for row in rows}
    more = "" if name == "hybrid" else _mean(paired(found, plain))
    sizes = [f"{rows[0][field] / 1024:,.0f}" for field in ("node_bytes_per_step", "residuals_bytes")]
    return [rows[0]["title"], _mean(list(found.values())), more, *sizes]


def _mean(values: list[float]) -> str:
    found = interval(values)
    assert found is not None
    return with_half(found.mean, found.half_width, 2)
