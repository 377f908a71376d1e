"""`python -m benchmarks claims`: what a run's records show about each claim, before and after Holm's correction."""

import argparse
import csv
import io
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.analysis.claims.claim import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    STATUSES,
    Book,
    Claim,
    LedgerRow,
    Scope,
    Undecided,
    Verdict,
    combined,
    number,
    written,
)
from benchmarks.analysis.claims.evidence import (
    NUMERIC,
    Case,
    Evidence,
    changed_claims,
    fact_of,
    gather,
    odd,
    on_cpu,
    select,
)
from benchmarks.analysis.claims.kinds import KINDS, load_claims
from benchmarks.analysis.claims.metric_claims import BOTH, loss_between, seeds_by_reference
from benchmarks.analysis.claims.one_gpu import on_all
from benchmarks.analysis.claims.sound import mislabelled
from benchmarks.analysis.gpu_records import REFERENCE, Device, read_devices
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import markdown_table, printable
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.statistics import CONFIDENCE
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

OF_ACCURACY = ("not_worse", "better")
"""Kinds of tests whose number of seeds follows from their margin and spread."""
ON_SMALL = "the published value itself was not tested"


def ledger(*runs: Run, book: Book | None = None, devices: Sequence[Device] = ()) -> list[LedgerRow]:
    """Return a row for each claim. Runs are merged, and neither their order nor that of records matters.

    devices: the GPUs whose one-GPU checks test the claims of that kind.
    Contents of records never raise: what is missing or odd shows in status and reason.
    """
    book = book or load_claims()
    evidence = gather(runs)
    return corrected([_row(book, claim, evidence, devices) for claim in book.claims])


def _row(book: Book, claim: Claim, evidence: Evidence, devices: Sequence[Device]) -> LedgerRow:
    """Return the row of a claim; one that cells test is judged at full size if they do, else on small models."""
    kind = KINDS[claim.kind]
    if kind.of == "numbers":
        return _as_row(book, claim, claim.paper, kind.judge(book, claim), "paper")
    if kind.of == "GPUs":
        verdict = on_all(kind.judge, claim, devices)
        return _as_row(book, claim, claim.paper, verdict, "none" if verdict.status == NOT_RUN else "one GPU")
    found = judge(book, claim, claim.paper, evidence)
    if found.status != NOT_RUN or claim.small is None:
        return _as_row(book, claim, claim.paper, found, "none" if found.status == NOT_RUN else "paper")
    on_small = judge(book, claim, claim.small, evidence)
    if on_small.status == NOT_RUN:  # name the small command first
        found = replace(found, reason=f"{found.reason}; the paper's models: {claim.paper.command}")
        return _as_row(book, claim, replace(claim.paper, command=claim.small.command), found, "none")
    full = ON_SMALL if claim.published else "the paper's models were not tested"
    where = f". On {', '.join(claim.small.models)}; {full}: {claim.paper.command}" if on_small.results else ""
    return _as_row(book, claim, claim.small, replace(on_small, reason=on_small.reason + where), "small models")


def _as_row(book: Book, claim: Claim, scope: Scope, verdict: Verdict, where: str) -> LedgerRow:
    stated, needed = claim.published, verdict.seeds_needed
    if needed is None and claim.kind in OF_ACCURACY:  # without a spread of its own, use that of the small models
        needed = seeds_by_reference(book, claim, scope)
    published = stated["value"].value if "value" in stated else verdict.published
    if published is None and where != "small models" and set(BOTH) <= set(stated):
        relative = bool(scope.limits.get("relative"))
        published = round(loss_between(stated["against"], stated["tested"], relative)[0], 4)
    filled = {
        "reason": " ".join(verdict.reason.split()),
        "published": published,
        "unit": verdict.unit or (stated["value"].unit if "value" in stated else None),
        "seeds_needed": needed,
        "results": (),
        "hardware": verdict.hardware or _hardware(verdict.results),
        "cells": verdict.cells or tuple(dict.fromkeys(record.cell.name for record in verdict.results)),
    }
    return LedgerRow(
        **vars(verdict) | filled,
        id=claim.id,
        statement=scope.statement,
        source=claim.source,
        scope=where,
        command=scope.command,
    )


def _hardware(results: Sequence[CellResult]) -> str | None:
    """Return the devices of the compared records, each with the number of ranks."""
    found = [(one.provenance.get("cpu" if on_cpu(one) else "device"), one.cell.world_size) for one in results]
    return "; ".join(dict.fromkeys(f"{name or 'not recorded'}, {ranks} ranks" for name, ranks in found)) or None


def corrected(judged: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows with `p_holm` and `holm`; a verdict that the correction opens says so in its reason."""
    changed = {}
    for those in grouped((family(one.id), one) for one in judged if one.p_value is not None).values():
        for one, value in zip(those, adjusted([float(one.p_value or 0.0) for one in those]), strict=True):
            opened = one.status in (REPRODUCED, NOT_REPRODUCED) and value > 1 - CONFIDENCE
            text = f"; of {len(those)} claims tested in its family, inconclusive by Holm's correction (p = {value:.2g})"
            holm, reason = (INCONCLUSIVE, one.reason + text) if opened else (one.status, one.reason)
            changed[one.id] = replace(one, p_holm=value, holm=holm, reason=reason)
    return [changed.get(one.id, one) for one in judged]


def family(name: str) -> str:
    """Return the family of a claim: the experiment, observation or section that its id begins with."""
    return name.partition("-")[0]


def adjusted(values: Sequence[float]) -> list[float]:
    """Return Holm-adjusted p-values: rejecting those below a level keeps the family-wise error at that level.

    Many claims are tested at once, so some pass by chance: S. Holm, "A simple sequentially rejective multiple test
    procedure", Scandinavian Journal of Statistics 6, 1979.
    """
    found, least = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda one: values[one])):
        least = max(least, min(1.0, (len(values) - rank) * values[index]))
        found[index] = least
    return found


# --- The verdict on one scope of a claim: every group of cells must show it, with nothing odd about the records ---


def judge(book: Book, claim: Claim, scope: Scope, evidence: Evidence) -> Verdict:
    """Return what the evidence shows about a claim in one scope."""
    kind, on_gpus = KINDS[claim.kind], scope is claim.paper and scope.on_gpus
    found = [one for model in scope.models for one in select(evidence, scope, model, kind.measured, on_gpus=on_gpus)]
    cases = [tuple(found)] if kind.together else [(one,) for one in found]
    verdicts = []
    for those in cases:
        try:
            verdict = kind.judge(Case(book=book, claim=claim, scope=scope, comparisons=those))
        except Undecided as why:
            verdict = why.verdict
        verdicts.append(doubted(kind.bears, evidence, [text for one in those if (text := one.missing())], verdict))
    return combined(verdicts, [those[0].group for those in cases])


NAMED = ("commit", "python", "driver", "nccl", "image_digest", "cores", "environment")
"""Further facts that are named, with `NUMERIC`, if they differ."""
TRAINED = ("process_group", "steps")
"""What only claims of whole trainings and of times name: Gloo and NCCL, which add in other orders, and the steps, which
the recipe leaves open where the number of samples depends on how texts are cut."""
PLACED = ("link_rates", "ranks_per_host")
"""What only claims of times name: links that were slowed down, and how many ranks share a host."""
BEARING: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "digits": (*NUMERIC, *TRAINED),
    "times": (*NAMED, *NUMERIC, *TRAINED, *PLACED),
}
"""For each value of a kind's `bears`, the facts that leave a verdict open if they differ between its sides.

Another commit may explain other digits, so a claim is then not refuted. It does not weaken a reproduced claim, because
cells whose code changed are run again.
"""
ON_GPU = ("cpu", "cores")
"""Facts that change no digit computed on a GPU."""


def doubted(bears: str, evidence: Evidence, missing: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict with what is odd about its records, inconclusive if that affects it.

    missing: the cells of the matrix without a record. They count as failed, so that none can be left out to pass.
    """
    status, reasons, results = verdict.status, [verdict.reason], verdict.results
    if mixed := differing(results, bears):
        reasons.append(f"the cells compared differ in {', '.join(mixed)}")
        bearing = (*BEARING[bears], *(("commit",) if bears == "digits" and status == NOT_REPRODUCED else ()))
        if status in (REPRODUCED, NOT_REPRODUCED) and set(bearing) & _between_sides(results, bears):
            status = INCONCLUSIVE
    finished = [one for one in results if bears != "nothing" and one.status == "ok"]
    open_for = [*map(mislabelled, finished), *(evidence.twice.get(one.cell) for one in results)]
    if any(open_for) or (missing and status == REPRODUCED):
        status = INCONCLUSIVE
    more = dict.fromkeys(text for text in (*(missing if results else ()), *open_for) if text)
    reasons += [text for text in more if text not in verdict.reason]
    return replace(verdict, status=status, reason="; ".join(reasons))


def differing(results: Iterable[CellResult], bears: str) -> list[str]:
    """Return the facts of hardware, software and inputs that are not the same in all records of a model.

    bears: a key of `BEARING`, whose facts count too. A training that diverged does not say all of them.
    """
    told: dict[str, dict[str, set[str]]] = {key: {} for key in (*NAMED, *NUMERIC, *BEARING[bears])}
    for one in results:
        for key, by_model in told.items():
            value = one.steps if key == "steps" else fact_of(one.provenance, key)
            if one.status == "ok" or (value is not None and key != "steps"):
                by_model.setdefault(one.cell.model, set()).add(str(value))
    return [key for key, by_model in told.items() if any(len(values) > 1 for values in by_model.values())]


def _between_sides(results: Iterable[CellResult], bears: str) -> set[str]:
    """Return the facts that differ between records of one seed or, for times, between any two."""
    by_seed = grouped(((one.cell.model, 0 if bears == "times" else one.cell.seed), one) for one in results)
    found = {key for those in by_seed.values() for key in differing(those, bears)}
    on_gpus = not any(on_cpu(one) for those in by_seed.values() for one in those)
    return found - set(ON_GPU) if on_gpus and bears == "digits" else found


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
    lines += ["", "Not run. What fills them:"] if waiting(judged) else []
    for command, names in waiting(judged).items():
        text = f"- {command}  ({len(names)}: {families(names)})"
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return printable("\n".join(lines))


def _line(one: LedgerRow) -> str:
    """Return the measured beside the published value, cut to one line; tables/claims.md has the rest."""
    short = one.reason.partition(". On ")[0]
    if one.command == "python -m benchmarks claims":
        short = f"{_measured(one)} by arithmetic" + (f", stated {_published(one)}" if _published(one) else "")
    name = f"{SYMBOLS[one.status]} {one.id:<36} "
    return name + textwrap.shorten(short, WIDTH - len(name))


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
