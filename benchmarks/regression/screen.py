"""What a check found, for people: settings sorted by how bad it is, each with what changed."""

from collections.abc import Sequence

from benchmarks.regression.compare import SAVINGS, TOLD, Outcome
from benchmarks.regression.names import QUANTITY_WORDS, change_text

HEADINGS = {
    "problem": "NOT COMPARED, since there is no valid record",
    "worse": "WORSE than the reference",
    "changed": "CHANGED within the band, on the same machine",
    "new": "NEW, not in the reference",
    "better": "BETTER than the reference",
}
HINT = "To make what is told here the reference: the same command with --accept 'why'"


def diff_text(outcomes: Sequence[Outcome]) -> str:
    """Return everything that is not as the reference has it; "" if all is."""
    parts = []
    for verdict in TOLD:
        chosen = by_setting([one for one in outcomes if one.verdict == verdict])
        if chosen:
            lines = [f"{HEADINGS[verdict]}: {len(chosen)}"]
            parts.append("\n".join([*lines, *(line for group in chosen for line in _lines(group))]))
    return "\n\n".join(parts)


def verdict_text(outcomes: Sequence[Outcome]) -> str:
    """Return the last line: how many settings, and what of them."""
    counts = {verdict: len({one.name for one in outcomes if one.verdict == verdict}) for verdict in TOLD}
    words = {
        "problem": "without a valid record",
        "worse": "worse",
        "changed": "changed",
        "new": "new",
        "better": "better",
    }
    told = [f"{count} {words[verdict]}" for verdict, count in counts.items() if count]
    total = len({one.name for one in outcomes})
    state = "FAILED" if any(one.fails for one in outcomes) else "PASSED"
    return f"Check {state}: {total} settings, {', '.join(told) or 'all as in the reference'}"


def by_setting(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group outcomes by setting, the worst setting first, and in each what is said first."""
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(one.name, []).append(one)
    return sorted(groups.values(), key=lambda group: -max(one.severity for one in group))


def text_of(outcome: Outcome) -> str:
    """Return one outcome without its label."""
    if outcome.reason or outcome.old is None or outcome.new is None:
        word = "" if outcome.quantity == "record" else f"{QUANTITY_WORDS[outcome.quantity]}: "
        return f"{word}{outcome.reason}"
    return change_text(outcome.quantity, outcome.old, outcome.new)


def _lines(group: Sequence[Outcome]) -> list[str]:
    """Savings first, since they are what it is about; then the parts."""
    first, *others = sorted(group, key=lambda one: (one.quantity not in SAVINGS, -one.severity))
    return [f"  {first.label}: {text_of(first)}", *(f"    {text_of(one)}" for one in others)]
