"""A claim with the cells found for it, as the kinds of tests take it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.claim import Book, Claim, Scope
from benchmarks.claims.select import TO_COME, Comparison
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_RUN, Verdict


@dataclass(frozen=True, kw_only=True)
class Case:
    """One scope of a claim and a comparison for each of its models."""

    book: Book
    claim: Claim
    scope: Scope
    comparisons: tuple[Comparison, ...]
    is_paper: bool
    """Whether the published value is tested, and not only its direction on small models."""

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of this scope."""
        return self.scope.limits

    @property
    def only(self) -> Comparison:
        """The comparison of a claim about one model."""
        return self.comparisons[0]

    def published(self, role: str = "value") -> float | None:
        """Return what the paper states for a role; None if it states nothing, or not of these models."""
        one = self.claim.published.get(role)
        return one.value if one is not None and self.is_paper else None


def lacking(comparison: Comparison, *roles: str) -> Verdict | None:
    """Return why nothing can be compared; None if each of these roles has finished a cell.

    What failed has an outcome and leaves the claim inconclusive; what was not run yet leaves it not run.
    """
    empty = [role for role in roles if not comparison.results.get(role)]
    if not empty:
        return None
    failed = [hole for role in empty for hole in comparison.holes.get(role, {}).values() if hole.status not in TO_COME]
    if failed:
        reason = f"{failed[0].name}: {failed[0].status}, {failed[0].reason}"
        return Verdict(status=INCONCLUSIVE, reason=reason)
    holes = [hole for role in empty for hole in comparison.holes.get(role, {}).values()]
    reason = f"{holes[0].name}: {holes[0].status}" if holes else f"no cells of {comparison.model} for it ({empty[0]})"
    return Verdict(status=NOT_RUN, reason=reason)
