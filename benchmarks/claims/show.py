"""The ledger as files, and compactly on the screen."""

import csv
import io
import json
import textwrap
from collections.abc import Sequence

from benchmarks.claims.finding import STATUSES, Finding
from benchmarks.claims.verdict import number

WIDTH = 110
SYMBOLS = {"reproduced": "+", "not reproduced": "x", "inconclusive": "?", "not run": "-"}
LABELS = {
    "paper": "The paper's models, and its numbers by arithmetic",
    "small models": "On small models: what these records show of each claim; published values themselves were not tested",
}
COLUMNS = ("id", "status", "scope", "value", "interval_low", "interval_high", "unit", "published", "seeds", "statement")
COLUMNS += ("source", "tolerance", "reason", "command", "hardware", "cells")


def to_json(findings: Sequence[Finding]) -> str:
    """Return a list of findings as JSON."""
    return json.dumps([one.to_dict() for one in findings], indent=1, allow_nan=False) + "\n"


def to_csv(findings: Sequence[Finding]) -> str:
    """Return a row a claim."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in findings:
        low, high = one.interval or ("", "")
        plain = {**one.to_dict(), "interval_low": low, "interval_high": high, "cells": " ".join(one.cells)}
        writer.writerow(["" if plain[name] is None else plain[name] for name in COLUMNS])
    return text.getvalue()


def to_markdown(findings: Sequence[Finding]) -> str:
    """Return a table of all claims."""
    lines = [
        "# Claims",
        "",
        f"{counts(findings)}.",
        "",
        "| Claim | Status | Measured | Published | Why |",
        "|---|---|---:|---:|---|",
    ]
    for one in findings:
        where = f" ({one.scope})" if one.scope == "small models" else ""
        cells = [f"`{one.id}`: {one.statement}", one.status + where, _measured(one), _published(one), _why(one)]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def counts(findings: Sequence[Finding]) -> str:
    """Return how many claims have each status."""
    found = [f"{sum(one.status == status for one in findings)} {status}" for status in STATUSES]
    return f"{len(findings)} claims: {', '.join(found)}"


def to_screen(findings: Sequence[Finding]) -> str:
    """Return counts, a line or two for each claim that was tested, and what fills the others, by command."""
    symbols = ", ".join(f"{symbol} {status}" for status, symbol in SYMBOLS.items() if status != "not run")
    lines = [f"Claims: {counts(findings).partition(': ')[2]} ({len(findings)})", f"{symbols}"]
    for scope, label in LABELS.items():
        tested = [one for one in findings if one.scope == scope and one.status != "not run"]
        if not tested:
            continue
        seeds = {one.seeds for one in tested if one.seeds}
        label += ", one seed: what a laptop can show" if scope == "small models" and seeds == {1} else ""
        lines += ["", label, *(line for one in tested for line in _lines(one))]
    return "\n".join([*lines, *_not_run(findings)])


def _lines(one: Finding) -> list[str]:
    short = one.reason.partition(". On ")[0]
    head = f"{SYMBOLS[one.status]} {one.id}"
    return textwrap.wrap(f"{head:<34} {short}", WIDTH, subsequent_indent=" " * 35)


def _not_run(findings: Sequence[Finding]) -> list[str]:
    """Commands and the claims they fill, those with the most claims first."""
    waiting: dict[str, list[str]] = {}
    for one in findings:
        if one.status == "not run":
            waiting.setdefault(one.command, []).append(one.id)
    if not waiting:
        return []
    lines = ["", "Not run; each command fills these claims:"]
    for command, names in waiting.items():
        text = f"- {command}: {len(names)}, {_families(names)}"
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ")
    return lines


def _families(names: Sequence[str]) -> str:
    """Return the names, those that differ in the last word only put together."""
    families: dict[str, list[str]] = {}
    for name in names:
        head = next((known for known in families if name.startswith(f"{known}-")), _family(name, names))
        families.setdefault(head, []).append(name)
    return ", ".join(f"{head}-*" if len(found) > 1 else found[0] for head, found in families.items())


def _family(name: str, names: Sequence[str]) -> str:
    """The longest beginning, whole words, that another name shares; the name itself if none does."""
    words = name.split("-")
    for count in range(len(words) - 1, 1, -1):
        head = "-".join(words[:count])
        if any(other != name and other.startswith(f"{head}-") for other in names):
            return head
    return name


def _measured(one: Finding) -> str:
    if one.value is None:
        return ""
    within = f" [{number(one.interval[0])}, {number(one.interval[1])}]" if one.interval else ""
    return f"{number(one.value)}{within} {one.unit or ''}".strip()


def _published(one: Finding) -> str:
    return "" if one.published is None else f"{number(one.published)} {one.unit or ''}".strip()


def _why(one: Finding) -> str:
    return f"{one.reason}; `{one.command}`" if one.status in ("not run", "inconclusive") else one.reason
