"""The ledger of claims for the page: numbers as text, counts, and groups of claims."""

import re
from collections.abc import Sequence

from benchmarks.analysis.claims.claim import STATUSES, LedgerRow
from benchmarks.analysis.claims.ledger import family
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import ABSENT, MINUS

SIGNS = {"reproduced": "✓", "not reproduced": "✗", "inconclusive": "?", "not run": ABSENT}
"""Signs before the words, for readers who cannot tell the colours apart."""
WORDS = {"obs": "Observation", "exp": "Experiment", "sec": "Section", "table": "Table", "ours": "Our own"}
"""Names of the claim families, by the letters that their ids begin with."""


def counts(judged: Sequence[LedgerRow]) -> list[tuple[str, str, int]]:
    """Return (status, its sign, how many claims have it) for all statuses."""
    return [(status, SIGNS[status], sum(one.status == status for one in judged)) for status in STATUSES]


def by_test(judged: Sequence[LedgerRow]) -> list[tuple[str, list[LedgerRow]]]:
    """Return the tested claims and those not run, each with a heading; empty groups are left out."""
    tested = [one for one in judged if one.status != "not run"]
    others = [one for one in judged if one.status == "not run"]
    words = (f"Tested: {len(tested)} of {len(judged)} claims", f"Not run: {len(others)} of {len(judged)} claims")
    return [(text, some) for text, some in zip(words, (tested, others), strict=True) if some]


def by_family(judged: Sequence[LedgerRow]) -> list[tuple[str, list[LedgerRow]]]:
    """Return the claims of each experiment, observation or section under its name, ordered by status."""
    found = grouped((family(one.id), one) for one in judged)
    return [(_words(name), sorted(those, key=lambda one: STATUSES.index(one.status))) for name, those in found.items()]


def _words(name: str) -> str:
    """Return a family's name, such as "Experiment 1" for exp1; unknown families keep their own name."""
    letters, digits = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{WORDS[letters]} {digits}".strip() if letters in WORDS else name


def number(value: float | None, unit: str | None = None) -> str:
    """Return a value with four significant digits and its unit."""
    if value is None:
        return ABSENT
    text = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return text.replace("-", MINUS) + (f" {unit}" if unit else "")


def measured_on(one: LedgerRow) -> str:
    """Return the seeds and the hardware that a verdict rests on, as far as known."""
    seeds = f"{one.seeds} seed{'s' if one.seeds > 1 else ''}" if one.seeds else ""
    return ", ".join(text for text in (seeds, one.hardware) if text)
