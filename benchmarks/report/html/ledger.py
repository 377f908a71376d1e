"""The ledger of claims as the page has it: findings with their numbers as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.claims.finding import STATUSES, Finding
from benchmarks.report.labels import ABSENT, MINUS

SIGNS = {"reproduced": "✓", "not reproduced": "✗", "inconclusive": "?", "not run": ABSENT}
"""Before the words, for those who do not see the colours."""


SCOPE_WORDS = {"paper": "the paper's own models or figures", "small models": "small models in their place"}


@dataclass(frozen=True)
class Entry:
    """A row of the ledger."""

    finding: Finding
    sign: str
    order: int
    """Of its status among all."""
    value: str
    interval: str
    published: str
    measured_on: str
    """Seeds and hardware."""


def entries(findings: Sequence[Finding]) -> list[Entry]:
    """Return the rows of the ledger, in the order of the claims."""
    return [_entry(finding) for finding in findings]


def counts(findings: Sequence[Finding]) -> list[tuple[str, str, int]]:
    """Return (status, its sign, how many claims have it) for all statuses."""
    return [(status, SIGNS[status], sum(one.status == status for one in findings)) for status in STATUSES]


def by_test(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Return what was tested and what was not, with the words over each; without what there is none of."""
    tested = [one for one in findings if one.status != "not run"]
    others = [one for one in findings if one.status == "not run"]
    words = (f"Tested: {len(tested)} of {len(findings)} claims", f"Not run: {len(others)} of {len(findings)} claims")
    return [(text, some) for text, some in zip(words, (tested, others), strict=True) if some]


def scopes(findings: Sequence[Finding]) -> list[tuple[str, int]]:
    """Return what tested claims were looked at on, and how many of them."""
    tested = [one.scope for one in findings if one.status != "not run"]
    return [(SCOPE_WORDS[scope], tested.count(scope)) for scope in SCOPE_WORDS if scope in tested]


def number(value: float | None, unit: str | None = None) -> str:
    """Return a value to four digits with its unit."""
    if value is None:
        return ABSENT
    text = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return text.replace("-", MINUS) + (f" {unit}" if unit else "")


def _entry(one: Finding) -> Entry:
    low_high = f"[{number(one.interval[0])}, {number(one.interval[1])}]" if one.interval else ""
    seeds = f"{one.seeds} seed{'s' if one.seeds > 1 else ''}" if one.seeds else ""
    on = [text for text in (seeds, one.hardware) if text]
    return Entry(
        finding=one,
        sign=SIGNS[one.status],
        order=STATUSES.index(one.status),
        value=number(one.value, one.unit),
        interval=low_high,
        published=number(one.published, one.unit),
        measured_on=", ".join(on),
    )
