"""How rows of systems are written: the same words on a screen, on pages of docs/ and in the report of a run."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.analysis import labels
from benchmarks.analysis.rivals.rivals_command import share_sent
from benchmarks.core.record import CellResult

COLUMNS = {
    "System": "title",
    "Seeds": "seeds",
    "Metric": "metric_mean",
    "Lost": "lost_mean",
    "Sent": "density_sent",
    "KiB a step": "sent_bytes",
    "ms a step": "step_seconds",
    "Held between steps": "held_share",
    "at the fullest": "peak_share",
}
"""Headings, and the field of a row that each column shows."""
UNSLOWED = "not slowed"


def systems_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of one model, as from `systems_rows`, as a Markdown table."""
    return labels.markdown_table(tuple(COLUMNS), list(map(texts, rows)), "lrrrrrrrr")


def texts(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of a row's columns; a dash for unknown values."""
    lost, sent, step_seconds = row["lost_mean"], row["sent_bytes"], row["step_seconds"]
    return [
        row["title"],
        str(row["seeds"]),
        labels.with_half(row["metric_mean"], row["metric_half_width"], 2),
        labels.ABSENT if lost is None else labels.signed_with_half(lost, row["lost_half_width"], 2),
        share_sent(row["density_sent"]),
        labels.ABSENT if sent is None else f"{sent / 1024:,.1f}",
        labels.ABSENT if step_seconds is None else f"{1000 * step_seconds:.0f}",
        *(labels.percent(row[name]) for name in ("held_share", "peak_share")),
    ]


def links_words(results: Iterable[CellResult]) -> str:
    """Return the rates to which links of nodes were slowed, and in how many cells; "" if none were."""
    rates = Counter(_rates(result.provenance.get("link_rates")) for result in results)
    if set(rates) <= {UNSLOWED}:
        return ""
    return "; ".join(f"{words} ({count} cell{'s' if count > 1 else ''})" for words, count in rates.items())


def _rates(found: Any) -> str:
    return (
        ", ".join(f"{host} {rate}" for host, rate in found.items()) if isinstance(found, dict) and found else UNSLOWED
    )
