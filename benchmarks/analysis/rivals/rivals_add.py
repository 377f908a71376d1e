"""Merge rows of compressors that were measured at different times: each setting gets the seeds of all."""

from collections.abc import Sequence
from typing import Any

from benchmarks.analysis.rivals.rivals_rows import HELD, SEEN, compared
from resireduce.errors import ConfigError

SETTING = ("model", "compressor", "scheme", "density")
MEANS = ("sent_bytes", "step_seconds", *SEEN.values())
"""Columns that hold a mean over the row's seeds."""
DATE = "Measured"
Row = dict[str, Any]
Sources = dict[str, list[str]]


def add_rows(before: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `before` merged with those of another run; losses against no compression are recomputed.

    If both have a setting, all its seeds count; if `rows` has all seeds of `before`, only `rows` counts. Raises
    ConfigError if the seeds overlap only in part, because a seed cannot be taken out of a mean.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in (*before, *rows):
        key = tuple(row[name] for name in SETTING)
        by_number = row | {"metrics": {int(seed): value for seed, value in row["metrics"].items()}}
        found[key] = _both(found[key], by_number) if key in found else by_number
    dense = {row["model"]: row["metrics"] for row in found.values() if row["compressor"] == "none"}
    return [
        row | compared(row["metrics"], dense.get(row["model"], {}), row["higher_is_better"]) for row in found.values()
    ]


def add_sources(before: Sources, sources: Sources) -> Sources:
    """Return where rows come from, each fact once, and the first and last day on which they were measured."""
    found = {word: list(dict.fromkeys([*before.get(word, []), *sources.get(word, [])])) for word in before | sources}
    days = [day for span in found.get(DATE, []) for day in span.split(" to ")]
    return found | ({DATE: [f"{min(days)} to {max(days)}"]} if days else {})


def _both(row: Row, other: Row) -> Row:
    seeds, others = row["metrics"].keys(), other["metrics"].keys()
    if seeds <= others:
        return other
    if seeds & others:
        name = ", ".join(f"{key} {row[key]}" for key in SETTING)
        raise ConfigError(
            f"add: seeds {sorted(seeds & others)} of {name} are there already, seeds {sorted(seeds - others)} are not "
            "in the run; leave the first out of it (only={seed: ...}), or measure the others too"
        )
    means = {name: _mean(row, other, name) for name in MEANS}
    held = {name: max(row[name], other[name]) for name in HELD}
    return row | means | held | {"metrics": row["metrics"] | other["metrics"]}


def _mean(row: Row, other: Row, name: str) -> float | None:
    if row[name] is None or other[name] is None:
        return None
    weights = len(row["metrics"]), len(other["metrics"])
    mean: float = (weights[0] * row[name] + weights[1] * other[name]) / sum(weights)
    return mean
