"""The findings of a check: as text, with the worst setting first and what changed in each; and as a JUnit file."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from benchmarks.analysis.check.compare import SAVINGS, TOLD, Outcome
from benchmarks.analysis.check.reference_rows import QUANTITY_WORDS, change_text
from benchmarks.analysis.grouping import grouped

HEADINGS = {
    "problem": "NOT COMPARED, since there is no valid record",
    "worse": "WORSE than the reference",
    "changed": "CHANGED within the band, on the same machine",
    "new": "NEW, not in the reference",
    "better": "BETTER than the reference",
}
WITHOUT = "without a valid record"
"""The word for a problem where settings are counted."""
HINT = "To make what is told here the reference: the same command with --accept 'why'"


def diff_text(outcomes: Sequence[Outcome]) -> str:
    """Return everything that differs from the reference, the worst setting first; "" if nothing does."""
    parts = []
    for verdict in TOLD:
        groups = grouped((one.name, one) for one in outcomes if one.verdict == verdict).values()
        chosen = sorted(groups, key=lambda group: -max(one.severity for one in group))
        if chosen:
            lines = [f"{HEADINGS[verdict]}: {len(chosen)}"]
            parts.append("\n".join([*lines, *(line for group in chosen for line in _lines(group))]))
    return "\n\n".join(parts)


def verdict_text(outcomes: Sequence[Outcome]) -> str:
    """Return the last line: how many settings there are, and how many have each verdict."""
    counts = {verdict: len({one.name for one in outcomes if one.verdict == verdict}) for verdict in TOLD}
    told = [f"{count} {WITHOUT if verdict == 'problem' else verdict}" for verdict, count in counts.items() if count]
    total = len({one.name for one in outcomes})
    state = "FAILED" if any(one.fails for one in outcomes) else "PASSED"
    return f"Check {state}: {total} settings, {', '.join(told) or 'all as in the reference'}"


def text_of(outcome: Outcome) -> str:
    """Return the text of an outcome without its label."""
    if outcome.reason or outcome.old is None or outcome.new is None:
        word = "" if outcome.quantity == "record" else f"{QUANTITY_WORDS[outcome.quantity]}: "
        return f"{word}{outcome.reason}"
    return change_text(outcome.quantity, outcome.old, outcome.new)


def _lines(group: Sequence[Outcome]) -> list[str]:
    """Return the lines of a setting: savings first, as they matter most, then the parts."""
    first, *others = sorted(group, key=lambda one: (one.quantity not in SAVINGS, -one.severity))
    return [f"  {first.label}: {text_of(first)}", *(f"    {text_of(one)}" for one in others)]


UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain."""


def junit(outcomes: Sequence[Outcome], run: str, seconds: float) -> bytes:
    """Return a JUnit file: "worse" and "problem" are failures; what could not be compared is skipped."""
    failures = sum(one.fails for one in outcomes)
    skipped = sum(one.verdict == "skipped" for one in outcomes)
    counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    counts |= {"time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuites", {"name": "benchmarks check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _fit(f"check of {run}"), **counts})
    for one in outcomes:
        names = {"classname": _fit(one.name), "name": _fit(f"{one.label}: {QUANTITY_WORDS[one.quantity]}")}
        case = ElementTree.SubElement(suite, "testcase", {**names, "time": "0"})
        text = _fit(f"{one.label}: {text_of(one)}")
        if one.fails:
            ElementTree.SubElement(case, "failure", {"message": text, "type": one.verdict}).text = text
        elif one.verdict == "skipped":
            ElementTree.SubElement(case, "skipped", {"message": text})
        elif one.verdict != "same":
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _fit(text: str) -> str:
    return UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)
