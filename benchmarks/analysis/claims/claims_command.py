"""`python -m benchmarks claims`: what a run's records show about each claim, the paper's and our own."""

import argparse
import csv
import io
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks.analysis.claims.claim import STATUSES, LedgerRow, number, written
from benchmarks.analysis.claims.evidence import changed_claims, odd
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.gpu_records import REFERENCE, read_devices
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import markdown_table, printable
from benchmarks.analysis.load_run import load_run
from resireduce.errors import ConfigError

# --- The ledger as files, and compactly on the screen ---


WIDTH = 118
SYMBOLS = {"reproduced": "+", "not reproduced": "x", "inconclusive": "?"}
LABELS = {
    "paper": "The paper's models, and its numbers by arithmetic",
    "one GPU": "On one GPU, by the records of its check",
    "small models": "On small models: what a laptop can show of each; published values themselves were not tested",
}
COLUMNS: tuple[str, ...] = ("id", "status", "scope", "value", "interval_low", "interval_high", "unit", "published")
COLUMNS += ("seeds", "seeds_needed", "p_value", "p_holm", "holm", "statement", "source", "tolerance", "reason")
COLUMNS += ("command", "hardware", "cells")
MARKDOWN_HEAD = ("Claim", "Status", "Measured", "Published", "Why")


def to_json(judged: Sequence[LedgerRow]) -> str:
    """Return the ledger as a JSON list."""
    return json.dumps([one.to_dict() for one in judged], indent=1, allow_nan=False) + "\n"


def to_csv(judged: Sequence[LedgerRow]) -> str:
    """Return one CSV row per claim; missing values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for one in judged:
        low, high = one.interval or ("", "")
        writer.writerow({**vars(one), "interval_low": low, "interval_high": high, "cells": " ".join(one.cells)})
    return text.getvalue()


def to_markdown(judged: Sequence[LedgerRow]) -> str:
    """Return a table of all claims."""
    rows = []
    for one in judged:
        status = f"{one.status} ({one.scope})" if one.scope in ("small models", "one GPU") else one.status
        why = f"{one.reason}; `{one.command}`" if one.status in ("not run", "inconclusive") else one.reason
        why += f"; 80 % power with {one.seeds_needed} seeds" if one.seeds_needed else ""
        cells = [f"`{one.id}`: {one.statement}", status, _measured(one), _published(one), why]
        rows.append([cell.replace("|", "/") for cell in cells])
    return f"# Claims\n\n{counts(judged)}.\n\n{markdown_table(MARKDOWN_HEAD, rows, 'llrrl')}\n"


def counts(judged: Sequence[LedgerRow]) -> str:
    """Return how many claims have each status."""
    found = [f"{sum(one.status == status for one in judged)} {status}" for status in STATUSES]
    return f"{len(judged)} claims: {', '.join(found)}"


def to_screen(judged: Sequence[LedgerRow]) -> str:
    """Return counts, a line for each tested claim, and the commands that run the others."""
    lines = [counts(judged), ", ".join(f"{symbol} {status}" for status, symbol in SYMBOLS.items())]
    for scope, label in LABELS.items():
        tested = [one for one in judged if one.scope == scope and one.status != "not run"]
        lines += ["", label, *map(_line, tested)] if tested else []
    return printable("\n".join([*lines, *_not_run(judged)]))


def _line(one: LedgerRow) -> str:
    """Return the measured beside the published value, cut to one line; tables/claims.md has the rest."""
    short = one.reason.partition(". On ")[0]
    if one.command == "python -m benchmarks claims":
        short = f"{_measured(one)} by arithmetic" + (f", stated {_published(one)}" if _published(one) else "")
    name = f"{SYMBOLS[one.status]} {one.id:<36} "
    return name + textwrap.shorten(short, WIDTH - len(name))


def _not_run(judged: Sequence[LedgerRow]) -> list[str]:
    """Return commands, each with the claims that it tests."""
    lines = ["", "Not run. What fills them:"] if waiting(judged) else []
    for command, names in waiting(judged).items():
        text = f"- {command}  ({len(names)}: {families(names)})"
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return lines


def waiting(judged: Sequence[LedgerRow]) -> dict[str, list[str]]:
    """Return the ids of claims that were not run, by the command that measures them."""
    return grouped((one.command, one.id) for one in judged if one.status == "not run")


def families(names: Sequence[str]) -> str:
    """Return the names; those that share at least their first two words become one entry with a star."""
    alike: dict[str, list[str]] = {}
    for name in names:
        words = name.split("-")
        heads = ("-".join(words[:count]) for count in range(len(words) - 1, 1, -1))
        head = next((head for head in heads if sum(one.startswith(f"{head}-") for one in names) > 1), name)
        alike.setdefault(head, []).append(name)
    return ", ".join(f"{head}-*" if len(found) > 1 else found[0] for head, found in alike.items())


def _measured(one: LedgerRow) -> str:
    return "" if one.value is None else written(one.value, one.interval, one.unit or "").strip()


def _published(one: LedgerRow) -> str:
    return "" if one.published is None else f"{number(one.published)} {one.unit or ''}".strip()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    text = "a run's folder, e.g. results/runs/smoke; may be given several times"
    parser.add_argument("--run", type=Path, action="append", default=[], help=text)
    text = "folder of records of the one-GPU check, with a folder for each GPU (default: %(default)s, as committed)"
    parser.add_argument("--gpus", metavar="DIR", type=Path, default=REFERENCE, help=text)
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON, a list of claims")


def main(args: argparse.Namespace) -> int:
    """Print the ledger and return 0 whatever the verdicts. Raises ConfigError for what holds no run."""
    runs = [load_run(path) for path in args.run]
    if args.gpus != REFERENCE and not args.gpus.is_dir():
        raise ConfigError(f"gpus: {str(args.gpus)!r} is not a folder; give one that holds a folder for each GPU")
    devices = read_devices(args.gpus)
    notes = [f"{run.name}: {note}" for run in runs for note in (*run.notes, *odd(run))]
    for note in (*notes, *changed_claims(), *(note for device in devices for note in device.notes)):
        print(f"note: {printable(note)}", file=sys.stderr)
    found = ledger(*runs, devices=devices)
    print(to_json(found) if args.json else to_screen(found), end="" if args.json else "\n")
    return 0
