"""The table of docs/fsdp.md, from the figures of `benchmarks.training.sharded`. Imports no torch."""

from typing import Any

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import markdown_table
from benchmarks.analysis.statistics import interval, paired

HEAD = ("", "Perplexity", "more than the hybrid's", "Between nodes, KiB a step", "Residuals of a rank, KiB")


def sharded(values: dict[str, Any]) -> str:
    """Every way to average between two nodes: its metric over all seeds, the bytes it sends, and those a rank holds."""
    ways = grouped((row["name"], row) for row in values["rows"])
    plain = {row["seed"]: row["perplexity"] for row in ways["hybrid"]}
    return markdown_table(HEAD, [_row(name, rows, plain) for name, rows in ways.items()], "lrrrr")


def _row(name: str, rows: list[dict[str, Any]], plain: dict[int, float]) -> list[str]:
    found = {row["seed"]: row["perplexity"] for row in rows}
    more = "" if name == "hybrid" else _mean(paired(found, plain))
    sizes = [f"{rows[0][field] / 1024:,.0f}" for field in ("node_bytes_per_step", "residuals_bytes")]
    return [rows[0]["title"], _mean(list(found.values())), more, *sizes]


def _mean(values: list[float]) -> str:
    found = interval(values)
    assert found is not None
    return f"{found.mean:.2f}" + ("" if found.half_width is None else f" ± {found.half_width:.2f}")
