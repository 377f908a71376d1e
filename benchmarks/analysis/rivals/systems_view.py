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
DIGITS = 2
"""Decimals of metrics and losses."""
UNSLOWED = "not slowed"


def systems_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of one model, as from `systems_rows`, as a Markdown table; losses beyond their interval bold."""
    return labels.markdown_table(tuple(COLUMNS), list(map(_marked, rows)), "lrrrrrrrr")


def _marked(row: Mapping[str, Any]) -> list[str]:
    lost = list(COLUMNS).index("Lost")
    return [f"**{text}**" if place == lost and is_beyond(row) else text for place, text in enumerate(texts(row))]


def is_beyond(row: Mapping[str, Any]) -> bool:
    """Say whether the metric of a row differs from no compression by more than its interval, in the digits shown."""
    lost, half = row["lost_mean"], row["lost_half_width"]
    return None not in (lost, half) and abs(lost) > half and round(abs(lost), DIGITS) > 0


def texts(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of a row's columns; a dash for unknown values."""
    lost, sent = row["lost_mean"], row["sent_bytes"]
    return [
        row["title"],
        str(row["seeds"]),
        labels.with_half(row["metric_mean"], row["metric_half_width"], DIGITS),
        labels.ABSENT if lost is None else labels.signed_with_half(lost, row["lost_half_width"], DIGITS),
        share_sent(row["density_sent"]),
        labels.ABSENT if sent is None else f"{sent / 1024:,.1f}",
        milliseconds(row),
        *(labels.percent(row[name]) for name in ("held_share", "peak_share")),
    ]


def milliseconds(row: Mapping[str, Any]) -> str:
    """Return the time of a step of a row; a dash if it is unknown."""
    return labels.ABSENT if row["step_seconds"] is None else f"{1000 * row['step_seconds']:.0f}"


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
